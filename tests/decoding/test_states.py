"""How the state of a batch begins and changes: pytest tests/decoding/test_states.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ByPosition, TableHeads

from specdec import Params, Plan, decode, prefill, row_keys, score, step
from specdec.decoding import loop, states
from specdec.drafters import Blockwise, Drafter
from specdec.sampling import MinLength, Processed, Sampling
from specdec.schedules import Confidence, Fixed
from specdec.testing import Constant, TableTarget
from specdec.types import Draft, ModelOutput, Verdict
from specdec.verifiers import SpeculativeSampling

SIZE, STOP = 6, 3
TARGET = TableTarget(SIZE, classes=3)
TREE = TARGET.init(jax.random.key(0))


@pytest.mark.parametrize(
    "tokens, length, want, kept",
    [
        ((5, 0, 2, 4), 4, 4, 4),  # the last id there is, and the first
        ((2, SIZE, 2, 2), 4, 4, 1),  # one more than the last
        ((SIZE, 2, 2, 2), 4, 4, 0),
        ((2, 2, -1, 2), 4, 4, 2),
        ((2, STOP, 2, 2), 4, 4, 2),  # the stop id itself stays
        ((2, 2, 2, STOP), 3, 4, 3),
        ((2, 2, 2, 2), 3, 4, 3),
        ((2, 2, 2, 2), 4, 1, 1),
        ((2, 2, 2, 2), 4, 0, 0),
        ((2, 2, 2, 2), -1, 4, 0),  # a drafter may count wrongly
        ((2, SIZE, STOP, 2), 4, 4, 1),
        ((STOP, SIZE, 2, 2), 4, 4, 1),
    ],
)
def test_a_draft_is_cut_to_what_can_be_verified(tokens, length, want, kept):
    draft = Draft(jnp.array([tokens], jnp.int32), None, jnp.array([length], jnp.int32))
    cut = states.trim(draft, jnp.array([want], jnp.int32), SIZE, (STOP,))
    assert cut.length.tolist() == [kept]
    assert cut.tokens.tolist() == [[*tokens[:kept], *[0] * (4 - kept)]]


def test_rows_are_cut_on_their_own():
    tokens = jnp.array([[2, 2], [SIZE, 2], [STOP, 2]], jnp.int32)
    draft = Draft(tokens, None, jnp.full([3], 2, jnp.int32))
    cut = states.trim(draft, jnp.full([3], 2, jnp.int32), SIZE, (STOP,))
    assert cut.length.tolist() == [2, 0, 1]
    assert np.array_equal(cut.tokens, [[2, 2], [0, 0], [STOP, 0]])


@pytest.mark.parametrize(
    "sampling",
    [ByPosition(), Processed(ByPosition(), (MinLength(1),))],
    ids=["alone", "behind a processor"],
)
def test_a_sampling_rule_is_told_the_position_of_each_token(sampling):
    """Row 0 has no prefix and row 1 one of two tokens. The draft is right at position 3 only."""
    inputs, prefix = jnp.ones([2, 2], jnp.int32), jnp.array([[0, 0], [4, 5]], jnp.int32)
    plan = Plan(TARGET, Constant(3), SpeculativeSampling(), Fixed(3), sampling, 5, ())
    found = decode(Params(TREE), row_keys(0, jnp.arange(2)), inputs, plan, prefix=prefix)
    assert found.tokens.tolist() == [[0, 1, 2, 3, 4], [4, 5, 2, 3, 4]]
    assert found.trace.accepted.sum(axis=1).tolist() == [1, 1]
    scored = score(TREE, inputs, found.tokens, target=TARGET, sampling=sampling)
    assert scored.tolist() == [[0] * 5, [-np.inf, -np.inf, 0, 0, 0]]


def test_scores_say_whether_processors_have_changed_them():
    text = jnp.array([[0, 2, 0]]), jnp.array([2])
    draft = Draft(jnp.array([[3]]), None, jnp.array([1]))
    for sampling in (Sampling(), Processed(Sampling(), (MinLength(4),))):
        plan = Plan(TARGET, Constant(2), SpeculativeSampling(), Fixed(1), sampling, 2, (1,))
        scores = states.opinion(jnp.zeros([1, 2, SIZE]), draft, *text, None, plan)
        assert scores.processed == isinstance(sampling, Processed)
        assert bool((scores.logits[0, :, 1] == -jnp.inf).all()) == scores.processed


def test_a_prefix_is_fed_but_for_its_last_token():
    """Row 2 has the whole output already."""
    heads = TableHeads(SIZE, heads=2)
    drafter = Blockwise(heads, Sampling())
    plan = Plan(TARGET, drafter, SpeculativeSampling(), Fixed(2), Sampling(), 3, ())
    params = Params(TREE, heads.init(jax.random.key(1)))
    inputs = jnp.array([[1, 1], [2, 3], [1, 2]])
    prefix = jnp.array([[4, 3, 0], [5, 0, 0], [2, 0, 2]])
    state = prefill(params, row_keys(0, jnp.arange(3)), inputs, plan, prefix=prefix)
    assert state.length.tolist() == [3, 2, 4]
    assert state.cache.length.tolist() == [2, 1, 3]
    assert state.active.tolist() == [True, True, False]
    # A table's state: class of the inputs, sum of what was fed, last token. The start has none.
    assert state.hidden[0, :3].tolist() == [[0, 0, 0], [2, 0, 0], [2, 4, 4]]
    assert state.hidden[1, :2].tolist() == [[0, 0, 0], [2, 0, 0]]
    fed = jnp.array([[0, 4], [0, 5], [0, 2]])
    logits = TARGET.decode(TREE, fed, TARGET.prefill(TREE, inputs, 2))[0].logits
    own = jnp.take_along_axis(jax.nn.log_softmax(logits), prefix[:, :2, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(state.log_probs[0, :2], own[0], rtol=1e-6)
    assert state.log_probs[1].tolist() == [own[1, 0], 0, 0], "nothing behind the last token"


@dataclasses.dataclass(frozen=True)
class Remembers(Drafter):
    """A drafter whose state is how many tokens it was asked for."""

    def init(self, params, context):
        return jnp.full_like(context.length, -1)

    def propose(self, params, request, state):
        keys, want = request.keys, request.want
        return Draft(jnp.zeros(keys.shape, jnp.int32), None, want), want


def test_no_more_is_drafted_than_fits_before_the_targets_own_token():
    """And nothing for a row that has ended."""
    plan = Plan(TARGET, Remembers(), SpeculativeSampling(), Fixed(3), Sampling(), 6, ())
    prefix = jnp.array([[2, 0, 0, 0, 0], [2, 0, 0, 0, 0], [2, 3, 2, 3, 0], [2, 3, 2, 3, 2]])
    active, params = jnp.array([True, False, True, True]), Params(TREE)
    given = row_keys(0, jnp.arange(4)), jnp.ones([4, 2], jnp.int32), plan
    state = step(params, prefill(params, *given, active=active, prefix=prefix), plan)
    assert state.drafter.tolist() == [3, 0, 1, 0]
    assert state.trace.drafted[:, 0].tolist() == [3, 0, 1, 0]
    assert state.length[1] == 2 and not state.active[3]


def test_drafting_ends_with_the_text_or_by_the_schedules_rule():
    def stop_of(schedule):
        plan = Plan(TARGET, Constant(2), SpeculativeSampling(), schedule, Sampling(), 6, (1, 4))
        return loop._stop((), schedule.init(3), plan)

    assert stop_of(Fixed(3)) is None
    probs = jnp.full([3, SIZE], 0.1).at[:, 3].set(0.5)
    seen = jnp.int32(0), probs, jnp.array([4, 3, 2])
    for schedule, stops in (
        (Fixed(3, stop_at_end=True), [True, False, False]),
        (Confidence(0.0), [True, False, False]),
        (Confidence(0.4), [True, False, True]),
    ):
        stop = stop_of(schedule)
        assert stop.ask(stop.carry, *seen)[1].tolist() == stops


def test_what_a_call_adds_to_each_row():
    """The rows draft a stop id, have a token refused, get a stop id from the target, are full then,
    have a next token without finite logits, or had ended. The first and the last have none either,
    which does not matter there."""
    plan = Plan(TARGET, Constant(2), SpeculativeSampling(), Fixed(2), Sampling(), 3, (1, 4))
    active = jnp.array([True, True, True, True, True, False])
    given = row_keys(0, jnp.arange(6)), jnp.ones([6, 2], jnp.int32), plan
    state = prefill(Params(TREE), *given, active=active)
    drafted = [[2, 4], [2, 3], [2, 3], [2, 3], [2, 3], [2, 3]]
    broken = jnp.array([False, True, False, False, False, True])
    draft = Draft(jnp.array(drafted), None, jnp.full(6, 2), broken=broken)
    verdict = Verdict(jnp.array([2, 1, 0, 2, 1, 2]), jnp.array([5, 5, 4, 5, 5, 5]))
    scored = ModelOutput(jax.random.normal(jax.random.key(1), [6, 3, SIZE]), jnp.zeros([6, 3, 3]))
    failed = jnp.array([True, False, False, False, True, True])
    after = states.commit(state, draft, scored, verdict, plan.stop_ids, failed)
    tokens = np.array([[2, 4, 0], [2, 5, 0], [4, 0, 0], [2, 3, 5], [2, 0, 0], [0, 0, 0]])
    assert after.tokens[:, 1:].tolist() == tokens.tolist()
    assert after.length.tolist() == [3, 3, 2, 4, 2, 1]
    assert after.active.tolist() == [False, True, False, False, False, False]
    log_probs = np.asarray(jax.nn.log_softmax(scored.logits))
    own = np.take_along_axis(log_probs, tokens[:, :, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(after.log_probs, np.where(tokens, own, 0), rtol=1e-6)
    trace = after.trace
    assert trace.proposed[:, 0].tolist() == [*drafted[:5], [0, 0]]
    assert trace.accepted[:, 0].tolist() == [2, 1, 0, 2, 1, 0]
    assert trace.drafted[:, 0].tolist() == [2, 2, 2, 2, 2, 0]
    assert trace.calls.tolist() == [1, 1, 1, 1, 1, 0] and int(trace.steps) == 1
    assert trace.ended_in_draft.tolist() == [True, False, False, False, False, False]
    assert trace.failed.tolist() == [False, False, False, False, True, False]
    assert trace.broken_drafts.tolist() == [0, 1, 0, 0, 0, 0]
    nothing = Draft(jnp.zeros([6, 2], jnp.int32), None, jnp.zeros(6, jnp.int32), broken=broken)
    verdict = verdict._replace(num_accepted=jnp.zeros(6, jnp.int32))
    none = jnp.zeros(6, bool)
    again = states.commit(after, nothing, scored, verdict, plan.stop_ids, none)
    assert again.tokens[1, 1:].tolist() == [2, 5, 5] and again.length.tolist() == [3, 4, 2, 4, 2, 1]
    assert not again.active.any() and again.trace.calls.tolist() == [1, 2, 1, 1, 1, 0]
    np.testing.assert_array_equal(again.trace.proposed, trace.proposed)
    assert again.trace.ended_in_draft.tolist() == [True, False, False, False, False, False]
    assert again.trace.failed.tolist() == trace.failed.tolist()
    assert again.trace.broken_drafts.tolist() == [0, 2, 0, 0, 0, 0]
