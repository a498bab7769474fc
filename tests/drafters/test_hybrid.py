"""Two drafters in one: pytest tests/drafters/test_hybrid.py"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import context_of

from specdec.decoding import decode, prefill, row_keys
from specdec.drafters import Autoregressive, Hybrid, InputCopy, PromptLookup, Uniform
from specdec.drafters.drafter import shared_roles
from specdec.drafters.hybrid import _merged
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import Bench, Constant, TableTarget
from specdec.types import Draft, Params, Request, Stop, Table, TargetCall
from specdec.verifiers import SpeculativeSampling

TARGET = TableTarget(6, classes=3)
TREE = TARGET.init(jax.random.key(0))
OTHER = TARGET.init(jax.random.key(9))


def run(drafter, tree, rows=64, gamma=4):
    plan = Plan(TARGET, drafter, SpeculativeSampling(), Fixed(gamma), Sampling(), 25, ())
    inputs = jax.random.randint(jax.random.key(3), [rows, 6], 2, 6)
    return decode(Params(TREE, tree), row_keys(1, jnp.arange(rows)), inputs, plan)


def test_a_model_that_rested_has_lost_nothing():
    """The model is the target: of what it drafts after copies everything is accepted."""
    trace = run(Hybrid(PromptLookup(shortest=2), Autoregressive(TARGET, Sampling())), TREE).trace
    of_model = (trace.source == 1) & (trace.drafted > 0)
    of_copy = (trace.source == 0) & (trace.drafted > 0)
    assert int(of_model.sum()) > 50 and int(of_copy.sum()) > 50
    assert bool((trace.accepted == trace.drafted)[of_model].all())
    assert not bool((trace.accepted == trace.drafted)[of_copy].all())


@pytest.mark.ci
def test_the_model_rests_where_all_rows_copy():
    """Counted as the program runs: its calls are in a loop, which has no trips."""

    @dataclasses.dataclass(frozen=True)
    class Everything(PromptLookup):
        def propose(self, params, request, state):
            want = request.want
            draft, state = super().propose(params, request, state)
            return draft.replace(length=want), state

    calls = []

    @dataclasses.dataclass(frozen=True)
    class Counted(Autoregressive):
        def propose(self, params, request, state):
            want = request.want
            jax.debug.callback(lambda _: calls.append(1), want)
            return super().propose(params, request, state)

    steps = int(run(Hybrid(Everything(), Counted(TARGET, Greedy())), OTHER).trace.steps)
    jax.effects_barrier()
    assert steps > 5 and not calls
    steps = int(run(Hybrid(PromptLookup(shortest=4), Counted(TARGET, Greedy())), OTHER).trace.steps)
    jax.effects_barrier()
    assert 0 < len(calls) <= steps


def _pair(sampling):
    return Hybrid(PromptLookup(), Autoregressive(TARGET, sampling))


def test_q_is_dense_only_where_something_is_drawn():
    def probs_of(sampling):
        plan = Plan(TARGET, _pair(sampling), SpeculativeSampling(), Fixed(2), Sampling(), 8)
        keys = jax.vmap(lambda key: jax.random.split(key, 2))(row_keys(0, jnp.arange(3)))

        def propose(tree):
            state = prefill(Params(TREE, tree), row_keys(0, jnp.arange(3)), INPUTS, plan)
            request = Request(plan.context(state), keys, jnp.full([3], 2))
            return plan.drafter.propose(Params(TREE, tree), request, state.drafter)[0].probs

        return jax.eval_shape(propose, OTHER)

    INPUTS = jnp.full([3, 4], 3)
    assert probs_of(Greedy()) is None
    assert probs_of(Sampling()).shape == (3, 2, 6)


@pytest.mark.parametrize(
    "copied, wanted, sources",
    [
        (1, [0, 1, 2, 3, 4], [0, 0, 1, 1, 1]),  # all that is wanted is enough, however short
        (3, [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]),
        (0, [0, 1, 2, 3, 4], [1, 1, 1, 1, 1]),
    ],
)
def test_a_copy_is_taken_if_it_is_long_enough(copied, wanted, sources):
    """Three tokens, or as many as are wanted. The other drafter is asked for nothing more in these
    rows, and not at all if no row wants more."""

    class Notes(Constant):
        def propose(self, params, request, state):
            return super().propose(params, request, ())[0], 10 + request.want

    drafter = Hybrid(Constant(2, length=copied), Notes(4), shortest=3)
    context, keys = context_of(np.zeros([5, 3]), vocab_size=6), jnp.zeros([5, 4])
    request = Request(context, keys, jnp.array(wanted))
    draft, (_, asked) = drafter.propose(Params(()), request, ((), jnp.zeros(5, jnp.int32)))
    left = [want * source for want, source in zip(wanted, sources, strict=True)]
    assert asked.tolist() == [(10 + want) * any(left) for want in left]
    assert draft.source.tolist() == sources
    assert draft.tokens[:, 0].tolist() == [4 if source else 2 for source in sources]


def test_sources_in_the_second_drafter_follow_those_of_the_first():
    second = Hybrid(Constant(3, length=2), Constant(4), shortest=3)
    drafter = Hybrid(Constant(2, length=1), second, shortest=3)
    context, keys = context_of(np.zeros([3, 3]), vocab_size=6), jnp.zeros([3, 4])
    request = Request(context, keys, jnp.array([1, 2, 3]))
    draft, _ = drafter.propose(Params(()), request, ((), ((), ())))
    assert draft.source.tolist() == [0, 1, 2]
    assert draft.tokens[:, 0].tolist() == [2, 3, 4]


def test_a_stopping_rule_is_for_the_second_drafter():
    class Ends(Constant):
        def propose(self, params, request, state):
            want, stop = request.want, request.stop
            draft, state = super().propose(params, request, state)
            return draft if stop is None else draft.replace(length=jnp.minimum(want, 1)), state

    context, keys = context_of(np.zeros([2, 3]), vocab_size=6), jnp.zeros([2, 4])
    stop = Stop((), lambda carry, index, probs, tokens: (carry, tokens > 0))
    given = Params(()), Request(context, keys, jnp.array([4, 3]), stop), ((), ())
    assert Hybrid(Ends(2, length=0), Ends(4)).propose(*given)[0].length.tolist() == [1, 1]
    assert Hybrid(Ends(2), Ends(4)).propose(*given)[0].length.tolist() == [4, 3]


def test_each_row_has_the_probabilities_and_beliefs_of_its_own_draft():
    """A copy is certain of its tokens; a greedy model says what it holds likely."""
    soft = jnp.array([[[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]]] * 2)
    both = jnp.full([2], 2)
    copied = Draft(jnp.array([[2, 0]] * 2), None, both)
    drawn = Draft(jnp.array([[1, 0]] * 2), None, both, beliefs=soft)
    context = context_of([[0], [0]], vocab_size=3)
    merged = _merged(jnp.array([True, False]), copied, drawn, context)
    assert merged.tokens.tolist() == [[2, 0], [1, 0]] and merged.probs is None
    assert merged.beliefs[0].tolist() == [[0, 0, 1], [1, 0, 0]]
    np.testing.assert_array_equal(merged.beliefs[1], soft[1])
    dense = drawn.replace(probs=soft, beliefs=None)
    merged = _merged(jnp.array([True, False]), copied, dense, context)
    assert merged.probs[0].tolist() == [[0, 0, 1], [1, 0, 0]] and merged.beliefs is None
    np.testing.assert_array_equal(merged.probs[1], soft[1])


def test_two_drafters_of_one_role_are_refused():
    model = Autoregressive(TARGET, Greedy())
    with pytest.raises(ValueError, match="both drafters of Hybrid use role draft; give others"):
        Hybrid(model, model)
    with pytest.raises(ValueError, match="Hybrid.first is None; give a drafter"):
        Hybrid(None, model)
    copies = PromptLookup()
    assert Hybrid(copies, model).with_inner({"first": InputCopy()}) == Hybrid(InputCopy(), model)
    assert copies.with_inner({}) is copies


def test_parts_are_those_of_who_proposed():
    plan = Plan(TARGET, _pair(Greedy()), SpeculativeSampling(), Fixed(3), Greedy(), 8)
    assert plan.sources == ("PromptLookup", "Autoregressive")
    assert dict(
        (part[:2], part.calls)
        for part in plan.parts([TargetCall(None, one) for one in (0, 0, 0, 1)])
    ) == {
        ("target", 4): 1,
        ("draft", 2): 0.25,
        ("draft", 1): 0.5,
    }
    assert dict((part[:2], part.calls) for part in plan.parts([TargetCall(None, 0)])) == {
        ("target", 4): 1
    }


def test_lengths_belong_to_the_source_that_proposed_them():
    """Eight tokens were copied in one call, and two drafted by the model in the other."""
    hybrid = Hybrid(PromptLookup(), Autoregressive(TARGET, Greedy()))
    schedule = Fixed(8, stop_at_end=True)
    plan = Plan(TARGET, hybrid, SpeculativeSampling(), schedule, Greedy(), 32)
    found = {part[:2]: part.calls for part in plan.parts(TargetCall.each([8, 2], [0, 1]))}
    assert found == {("target", 9): 1, ("draft", 2): 0.5, ("draft", 1): 0.5}
    found = {part[:2]: part.calls for part in plan.parts(TargetCall.each([8, 0], [0, 1]))}
    assert found == {("target", 9): 1}, "nothing was wanted, so the model rested"
    with pytest.raises(ValueError, match="longer|shorter"):
        TargetCall.each([8, 2, 2], [0, 1])


def test_parts_are_the_calls_that_a_program_makes():
    """Counted as the program runs, one text: all calls but the wider ones that catch up."""
    calls = collections.Counter()

    @dataclasses.dataclass(frozen=True)
    class Counted(TableTarget):
        def decode(self, params, tokens, cache):
            jax.debug.callback(lambda _, width=tokens.shape[1]: calls.update([width]), tokens)
            return super().decode(params, tokens, cache)

    model = Autoregressive(Counted(6, classes=3), Greedy())
    drafter = Hybrid(InputCopy(), Hybrid(PromptLookup(shortest=2), model))
    assert len(drafter.sources) == 3
    schedule = Fixed(6, stop_at_end=True)
    plan = Plan(TARGET, drafter, SpeculativeSampling(), schedule, Sampling(), 40, ())
    inputs = jax.random.randint(jax.random.key(3), [1, 6], 2, 6)
    output = jax.device_get(decode(Params(TREE, OTHER), row_keys(1, jnp.arange(1)), inputs, plan))
    jax.effects_barrier()
    row = output.row(0)
    sources = row.sources
    assert {0, 2} <= set(sources) <= {0, 1, 2}
    parts = {part[:2]: part.calls for part in plan.parts(TargetCall.each(row.drafted, sources))}
    for width in (1, 2):
        assert parts["draft", width] * len(sources) == pytest.approx(calls[width])


@pytest.mark.slow
def test_a_uniform_draft_is_kept_as_often_as_theory_says():
    """alpha = sum_x min(p(x), 1 / V) (Leviathan et al. 2022, section 3.6)."""
    bench = Bench.create(max_length=20, rows=2_000)._replace(drafter=Uniform())
    output = bench.run(SpeculativeSampling(), Fixed(1), Sampling())
    inputs, tokens = bench.inputs(bench.rows), output.tokens
    cache = bench.target.prefill(bench.params["target"], inputs, 20)
    fed = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
    logits = bench.target.decode(bench.params["target"], fed, cache)[0].logits
    rates = np.minimum(jax.nn.softmax(logits), 1 / 6).sum(axis=2)
    emitted = np.array(output.trace.accepted) + 1
    starts = np.cumsum(emitted, axis=1) - emitted  # of each call, in tokens
    tested = np.array(output.trace.drafted) > 0
    expected = np.take_along_axis(rates, np.minimum(starts, 19), axis=1)[tested]
    kept = int(output.trace.accepted.sum())
    deviations = (kept - expected.sum()) / np.sqrt((expected * (1 - expected)).sum())
    assert tested.sum() > 1000 and abs(deviations) < 4.5  # false alarm: 7e-6


@dataclasses.dataclass(frozen=True)
class Owns(PromptLookup):
    """Has parameters in the role "draft"."""

    what: Any = None

    def owned(self):
        return {"draft": self.what}


def test_only_one_table_may_have_the_role_of_several_drafters():
    model, table, other = "a model", Table("ngram"), Table("store")
    for one, another, wrong in [
        (table, table, False),
        (table, other, True),
        (model, model, True),
        (model, table, True),
    ]:
        assert shared_roles([Owns(what=one), Owns(what=another)]) == ["draft"] * wrong
    assert shared_roles([Owns(what=model), PromptLookup()]) == []
