"""Drafters that vote: pytest tests/drafters/test_committee.py"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import StopAfterUnlikely, context_of
from tolerances import PROBABILITIES

from specdec import checkpoints
from specdec.checkpoints import tables
from specdec.common.values import UsageError
from specdec.decoding import Decided, prefill, replay, row_keys, step
from specdec.drafters import (
    Autoregressive,
    Committee,
    Hybrid,
    NGram,
    PromptLookup,
    WithoutPictures,
)
from specdec.drafters.committee import LEAST
from specdec.measure import recorded_texts
from specdec.models.families import model_of
from specdec.models.llama import Llama, LlamaConfig
from specdec.plan import Plan
from specdec.predict import draft_lengths
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Params, Request
from specdec.verifiers import Block, GreedyMatch, SpeculativeSampling

TARGET = TableTarget(6, classes=3)
TREE = TARGET.init(jax.random.key(0))
# Two tables of texts that say different things.
ONE, TWO = (
    jax.tree.map(jnp.asarray, tables.count(texts, 6, 2))
    for texts in ([[2, 3, 2, 3, 4]], [[5, 5, 2, 5, 4]])
)
INPUTS, KEYS = jnp.full([3, 4], 3), row_keys(0, jnp.arange(3))


def first_q(drafter, **trees):
    """[3, V] the distribution of the first token of a draft."""
    plan = Plan(TARGET, drafter, Block(), Fixed(2), Sampling(), 8)
    keys = jax.vmap(lambda key: jax.random.split(key, 2))(KEYS)

    @jax.jit
    def propose(params):
        state = prefill(params, KEYS, INPUTS, plan)
        request = Request(plan.context(state), keys, jnp.full([3], 2))
        return drafter.propose(params, request, state.drafter)[0]

    return np.asarray(propose(Params(TREE, **trees)).probs[:, 0])


def test_members_of_one_role_read_one_table():
    rule = Sampling()
    unigram, bigram = NGram(1, rule), NGram(2, rule)
    both = Committee((unigram, bigram), rule, (1.0, 3.0))
    expected = 0.25 * first_q(unigram, table=ONE) + 0.75 * first_q(bigram, table=ONE)
    np.testing.assert_allclose(first_q(both, table=ONE), expected, atol=PROBABILITIES)
    assert list(both.tables()) == ["table"]
    assert Hybrid(Hybrid(PromptLookup(), unigram), bigram).tables() == both.tables()


def test_members_of_other_roles_read_tables_of_their_own():
    """The remedy for two tables, and that for two models."""
    rule = Sampling()
    one, two = NGram(2, rule), NGram(2, rule, role="table_2")
    trees = {"table": ONE, "table_2": TWO}
    expected = (first_q(one, table=ONE) + first_q(two, table_2=TWO)) / 2
    np.testing.assert_allclose(
        first_q(Committee((one, two), rule), **trees), expected, atol=PROBABILITIES
    )
    model = Autoregressive(TARGET, rule)
    with pytest.raises(ValueError, match="several members of Committee have the role draft; give"):
        Committee((model, one, model), rule)
    assert Committee((model, Autoregressive(TARGET, Greedy(), role="draft_2")), rule).models()


ROWS, LONGEST, DECAY = 6, 14, 0.8
TEXTS = jnp.arange(2, 2 + 2 * ROWS).reshape(ROWS, 2)
# The second member is the target itself.
ONE_SIDED, OTHER = (
    dataclasses.replace(TARGET, scale=2.0).init(jax.random.key(seed)) for seed in (0, 1)
)
PARAMS = Params(ONE_SIDED, OTHER, draft_2=ONE_SIDED)


def adaptive(rule, decay: float | None = DECAY):
    members = Autoregressive(TARGET, rule), Autoregressive(TARGET, rule, role="draft_2")
    return Committee(members, rule, decay=decay)


def adaptive_plan(greedy):
    """Drafts of three tokens, or ones that a rule may end before; no text ends early."""
    rule = Greedy() if greedy else Sampling()
    schedule = Fixed(3) if greedy else StopAfterUnlikely(3, threshold=0.3)
    verifier = GreedyMatch() if greedy else SpeculativeSampling()
    return Plan(TARGET, adaptive(rule), verifier, schedule, rule, LONGEST, ())


@functools.cache
def states(greedy, first=0):
    """Returns the state after each step, and one step more."""
    plan = adaptive_plan(greedy)
    texts = TEXTS if not first else jnp.concatenate([TEXTS[first:], 9 - TEXTS[:first]])
    found = [prefill(PARAMS, row_keys(7, first + jnp.arange(ROWS)), texts, plan)]
    while len(found) < 2 or found[-2].active.any():
        found.append(step(PARAMS, found[-1], plan))
    return jax.device_get(found)


def known_scores(state, row, calls, greedy):
    """The members' scores for the tokens of a row's first calls, looked up in their tables."""
    scores, at, text = np.zeros(2), 0, state.tokens[row, 1:]
    for call in range(min(calls, int(state.trace.calls[row]))):
        drafted, accepted = (int(x[row, call]) for x in (state.trace.drafted, state.trace.accepted))
        for i in range(at, at + min(accepted + 1, drafted)):
            place = int(state.inputs[row].sum()) % 3, int(text[:i].sum()) % 6, text[i - 1] * (i > 0)
            logits = [np.asarray(PARAMS[role]["logits"][place]) for role in ("draft", "draft_2")]
            own = [np.exp(each[text[i]]) / np.exp(each).sum() for each in logits]
            agrees = [float(np.argmax(each) == text[i]) for each in logits]
            scores = DECAY * scores + (agrees if greedy else np.log(np.maximum(own, LEAST)))
        at += accepted + 1
    return scores


def check_scores(found, greedy=False):
    """Before each draft, the scores are of the calls before it, of each row for itself."""
    for number, state in enumerate(found):
        right = [known_scores(state, row, number - 1, greedy) for row in range(ROWS)]
        np.testing.assert_allclose(state.drafter[1].scores, right, atol=PROBABILITIES)


@pytest.mark.parametrize("greedy", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_scores_are_of_the_committed_tokens_and_weights_move_to_the_better_member(greedy):
    """A row has the same scores and calls with other neighbours."""
    found, moved = states(greedy), states(greedy, first=2)
    check_scores(found, greedy)
    check_scores(moved, greedy)
    last = found[-1]
    weights = np.concatenate(adaptive(Greedy())._weights(last.drafter[1]), axis=1)
    assert np.median(weights[:, 1]) > 0.8
    assert len(np.unique(last.trace.accepted[last.trace.drafted > 0])) > 2
    for name in ("accepted", "drafted", "proposed"):
        ours, theirs = (getattr(x[-1].trace, name) for x in (found, moved))
        np.testing.assert_array_equal(ours[2:], theirs[:-2])


def test_what_is_not_finite_is_not_scored():
    """A draft ends before such a vote, whatever the target's token is."""
    last = states(False)[3]
    record = last.drafter[1]
    one = record.replace(length=np.minimum(record.length, 1))
    broken = record.replace(votes=np.copy(record.votes))
    broken.votes[:, 1, 0] = np.nan
    ends = jax.jit(lambda record: record.scored(context_of(last.tokens, last.length), DECAY).scores)
    np.testing.assert_array_equal(ends(broken), ends(one))
    assert np.any(ends(one) != ends(record))


def test_scores_change_the_weights_that_are_given():
    given = dataclasses.replace(adaptive(Greedy()), weights=(3.0, 1.0), temperature=2.0)
    record = states(True)[0].drafter[1].replace(scores=2 * np.log([[1.0, 1.0], [1.0, 3.0]]))
    weights = np.concatenate(given._weights(record), axis=1)
    np.testing.assert_allclose(weights, [[0.75, 0.25], [0.5, 0.5]], atol=PROBABILITIES)


@pytest.mark.ci
def test_a_replay_meets_the_same_drafts():
    """The weights are those of the texts, so that each q is known again."""
    last, plan = states(False)[-1], adaptive_plan(False)
    trace = last.trace
    decided = Decided(last.tokens[:, 1:], trace.proposed, trace.drafted, trace.accepted)
    decided = jax.tree.map(jnp.asarray, decided)
    found = replay(PARAMS, row_keys(7, jnp.arange(ROWS)), TEXTS, decided, plan=plan)
    drafted = np.arange(trace.proposed.shape[2]) < trace.drafted[:, :, None]
    assert drafted.sum() > 50 and np.isfinite(found.q[drafted]).all()


@pytest.mark.ci
def test_one_member_sees_the_pictures_and_one_does_not():
    """A LLaVA that drafts for itself, and its language model alone, at the first two tokens."""
    folder = Path(__file__).resolve().parents[1] / "golden" / "hf_llava"
    golden: Any = dict(np.load(folder / "golden.npz"))
    model: Any = model_of(checkpoints.config_from(folder))
    params = checkpoints.load(folder, config=model.config)
    fields = {f.name: getattr(model.config, f.name) for f in dataclasses.fields(LlamaConfig)}
    blind = Autoregressive(Llama(LlamaConfig(**fields)), Greedy(), WithoutPictures(59))
    seeing = Autoregressive(model, Greedy(), role="draft_2")
    drafter = Committee((blind, seeing), Greedy(), decay=DECAY)
    own = {name: params[name] for name in ("token_embedder", "decoder")}
    inputs = {"tokens": jnp.asarray(golden["prompts"]), "pixels": jnp.asarray(golden["pixels"])}
    text = jnp.concatenate([model.start(inputs)[:, None], golden["greedy"][:, :2]], axis=1)
    rows = len(text)

    @jax.jit
    def proposed(trees, inputs, text):
        given = {"inputs": inputs, "vocab_size": 61, "cache": SimpleNamespace(capacity=4)}
        context = context_of(text, jnp.ones(rows), **given)
        keys = jnp.broadcast_to(row_keys(0, jnp.arange(rows))[:, None], (rows, 2))
        request = Request(context, keys, jnp.full([rows], 2))
        draft, (_, record) = drafter.propose(trees, request, drafter.init(trees, context))
        return draft, record, record.scored(context_of(text), DECAY).scores

    draft, record, scores = proposed(Params(params, own, draft_2=params), inputs, text)
    np.testing.assert_array_equal(record.votes[:, 0, 1], text[:, 1])
    same = np.asarray(draft.tokens[:, 0] == text[:, 1])
    np.testing.assert_allclose(scores[:, 1], np.where(same, 1 + DECAY, 1), rtol=1e-6)
    assert len(np.unique(scores[:, 0])) > 1 and np.all(scores[:, 0] <= scores[:, 1])


def test_what_adapts_has_no_recorded_texts():
    plan = adaptive_plan(True)
    hybrid = dataclasses.replace(plan, drafter=Hybrid(PromptLookup(), plan.drafter))
    run: Any = SimpleNamespace(plan=hybrid, data=SimpleNamespace(num_samples=1, decoder_prefix=""))
    with pytest.raises(UsageError, match="DRAFTER adapts .*; leave out COMMITTEE_DECAY"):
        draft_lengths._refuse(plan)
    with pytest.raises(UsageError, match="DRAFTER adapts"):
        recorded_texts.refuse_other_than_plain(run)
    assert not adaptive(Greedy(), decay=None).adapts


def test_a_decay_that_never_forgets_is_refused():
    with pytest.raises(ValueError, match=r"Committee.decay is 1.0; give a number between 0 and 1"):
        adaptive(Greedy(), decay=1.0)
