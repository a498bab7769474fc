"""The rows and tokens of the calls that an engine chooses layouts for, and measures the bits of.

pytest tests/engine/test_calls_of_an_engine.py
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import tasks
from specdec.decoding import NonFiniteLogits, row_keys
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams, T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.row_bits import NotTheSameBits
from specdec.drafters import Autoregressive, PreviousOutput
from specdec.engine import Engine, Placement
from specdec.engine.beam_engine import beam_plan, searching
from specdec.plan import Plan
from specdec.sampling import Greedy, MinLength, Sampling, with_processors
from specdec.schedules import Fixed
from specdec.testing import Constant, TableTarget
from specdec.types import Params
from specdec.verifiers import GreedyMatch, SpeculativeSampling

N = 8


@dataclasses.dataclass(frozen=True)
class Asked(TableTarget):
    """A table that keeps the calls which it was laid out for."""

    calls: tuple = ()

    def laid_out(self, calls, device=None):
        return dataclasses.replace(self, calls=tuple(sorted(calls.items())))


class Deep(Asked):
    """A table whose calls go through one layer or through two."""

    depths = (1, 2)


def plan_of(target, draft=None, **parts) -> Plan:
    rule = parts.pop("sampling", Greedy())
    drafter = Autoregressive(draft or target, rule)
    given = {"verifier": GreedyMatch(), "schedule": Fixed(3), "max_length": N, **parts}
    return Plan(target, drafter, sampling=rule, **given)


def engine_of(plan: Plan, rows: int) -> Engine:
    nothing: Any = None
    return Engine(plan, nothing, dict.fromkeys(plan.owned(), "a path"), rows=rows)


def calls_of(engine) -> dict:
    return {role: dict(model.calls) for role, model in engine.plan.models().items()}


def test_layouts_are_chosen_for_all_rows_of_a_call():
    """A target verifies 1 + 3 tokens; a draft of 3 begins with 2 and goes on with 1 and 1."""
    plan = plan_of(Asked(9))
    at_two = {"target": {8: 1.0}, "draft": {4: 1.0, 2: 2.0}}
    at_six = {"target": {24: 1.0}, "draft": {12: 1.0, 6: 2.0}}
    engine = engine_of(plan.laid_out(2), 2)
    assert calls_of(engine) == at_two
    together = engine.sampled(3)
    assert calls_of(together) == at_six and calls_of(engine.sampled()) == at_two
    assert calls_of(together.alone()) == {"target": {6: 1.0}}
    assert calls_of(engine.alone()) == {"target": {2: 1.0}}
    shorter = together.variant(schedule=Fixed(1))
    assert calls_of(shorter) == {"target": {12: 1.0}, "draft": {12: 1.0}}


def test_calls_of_one_width_are_counted_together():
    """Half of the calls go through one layer, and half through two; all have four tokens."""
    laid_out = plan_of(Deep(9), Asked(9)).laid_out(2)
    assert dict(laid_out.target.calls) == {8: 1.0}


def test_layouts_of_a_search_are_chosen_for_all_rows_of_its_calls():
    """Three beams and three depths of four; a draft feeds two layers of beams, and then nodes."""
    engine = engine_of(plan_of(Asked(9)), 2)
    search = searching(engine, beam_plan(engine.plan, 3, T5XBeams(), width=4, depth=3))
    assert calls_of(search) == {"target": {30: 1.0}, "draft": {12: 1.0, 8: 2.0}}
    assert calls_of(search.alone()) == {"target": {6: 1.0}}


@pytest.mark.parametrize(
    "samples, most, together", [(6, 4, 3), (6, 6, 6), (5, 4, 1), (8, 4, 4), (1, 4, 1)]
)
def test_as_many_samples_are_decoded_together_as_divide_their_number(samples, most, together):
    engine = engine_of(plan_of(TableTarget(9)), 2)
    assert engine.suited(samples=samples, together=most).together == together


@pytest.fixture
def read(monkeypatch):
    """Engines have random parameters."""

    monkeypatch.setattr(Placement, "read", lambda self, one, path: one.init(jax.random.key(0)))


class Counts(TableTarget):
    """A table that counts how often inputs are read."""

    reads: ClassVar[list[int]] = []

    def prefill(self, params, inputs, capacity):
        jax.debug.callback(lambda: self.reads.append(1))
        return super().prefill(params, inputs, capacity)


def test_every_program_draws_with_seed_index_and_sample_of_a_text(read):
    """The first text has index 0, and the last row none; all begin with the engine's prefix."""
    target = Counts(9, classes=3)
    parts = {"verifier": SpeculativeSampling(), "schedule": Fixed(1), "max_length": N}
    plan = Plan(target, Constant(2), sampling=Sampling(), **parts)
    work, right = [], []
    engine = dataclasses.replace(engine_of(plan, 2), prefix=(4, 3))
    for index, ids in (([0, 3], [[2, 3], [4, 0]]), ([7, -1], [[5, 5], [0, 0]])):
        inputs, index = np.array(ids, np.int32), np.array(index, np.int32)
        batch = tasks.Batch(inputs, inputs, index, [""] * 2, None, None)
        for sample in (0, 1):
            work.append((batch, sample))
            keys = row_keys(5, jnp.asarray(index), sample)
            output, _ = engine.program.fetch(engine.params, keys, inputs)
            right.append(output.tokens[index >= 0].tolist())
    assert all(text[:2] == [4, 3] for text in right[0]) and right[0] != right[1]
    for one, reads in ((engine, 4), (engine.sampled(2), 2), (engine.refilled((2,)), 6)):
        jax.effects_barrier()
        target.reads.clear()
        outputs = zip(work, one.outputs(work, seed=5), strict=True)
        found = [output.tokens[batch.index >= 0].tolist() for (batch, _), (output, _) in outputs]
        jax.effects_barrier()
        assert found == right and len(target.reads) == reads
    (batch, sample), tokens = work[1], right[1]
    assert engine.decode(batch, seed=5, sample=sample)[0].tokens.tolist() == tokens


def test_logits_that_are_not_finite_name_the_text(monkeypatch):
    """Inputs of class 1 have NaN, and the second row is of that class; indexes are of the task."""
    broken = {"logits": jnp.zeros([2, 9, 9, 9]).at[1].set(jnp.nan)}
    monkeypatch.setattr(Placement, "read", lambda *_: broken)
    plan = plan_of(TableTarget(9, classes=2), max_length=2).alone()
    inputs = np.array([[2, 2], [2, 3]], np.int32)
    batch = tasks.Batch(inputs, inputs, np.array([4, 9], np.int32), [""] * 2, None, None)
    engine = engine_of(plan, 2)
    for one in (engine, engine.sampled(2), searching(engine, beam_plan(plan, 2, T5XBeams()))):
        with pytest.raises(NonFiniteLogits, match="for output token 1 of text 9;"):
            list(one.outputs([(batch, 0), (batch, 1)]))
    with pytest.raises(NonFiniteLogits, match="for output token 1 of text 9;"):
        engine.score(batch._replace(targets=np.array([[3, 1], [3, 1]], np.int32)))


def test_what_is_compiled_ahead_is_what_runs(read, monkeypatch):
    """For batches of these rows and lengths, also of previous outputs, which are longer; each
    program begins with the engine's prefix."""
    compiled, real = [], jax.stages.Lowered.compile

    def compile(self, *given, **options):
        compiled.append(self)
        return real(self, *given, **options)

    def shapes(self):
        owned = self.plan.owned().items()
        return Params(**{role: one.parameter_shapes() for role, one in owned})

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    monkeypatch.setattr(Engine, "abstract", shapes)
    inputs = np.array([[2, 3, 4], [5, 6, 0]], np.int32)
    batch = tasks.Batch(inputs, inputs, np.arange(2), [""] * 2, None, None)
    plan = plan_of(TableTarget(9))
    revises = dataclasses.replace(plan, drafter=PreviousOutput())
    alone, revising = (
        dataclasses.replace(engine_of(one, 2), prefix=(4,)) for one in (plan.alone(), revises)
    )
    for engine in (alone, revising, searching(alone, beam_plan(alone.plan, 2, T5XBeams()))):
        compiled.clear()
        engine.check(3, compile=True)
        given = batch.revised([[2, 3], [4]], N) if engine is revising else batch
        tokens = engine.decode(given)[0].tokens
        assert np.all(tokens[..., 0] == 4) and np.any(tokens[..., 1] != 4) and len(compiled) == 1


def other_inputs(inputs):
    return inputs


def test_a_search_has_all_parts_of_a_plan():
    target, draft, rule = TableTarget(9), TableTarget(9, scale=2.0), HuggingFaceBeams()
    drafter = Autoregressive(draft, Greedy(), view=other_inputs, role="small")
    plan = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), N, stop_ids=(3, 4))
    drafts = DraftBeams(draft, 6, 2, other_inputs, role="small")
    expected = BeamPlan(target, 3, rule, N, drafts, best_only=True, stop_ids=(3, 4))
    assert beam_plan(plan, 3, rule, best_only=True) == expected
    processors = (MinLength(3),)
    plan = dataclasses.replace(plan, sampling=with_processors(Greedy(), processors))
    expected = dataclasses.replace(expected, processors=processors, best_only=False)
    assert beam_plan(plan, 3, rule, best_only=True) == expected
    wider = dataclasses.replace(expected, drafter=dataclasses.replace(drafts, width=5, depth=1))
    assert beam_plan(plan, 3, rule, width=5, depth=1) == wider
    alone = dataclasses.replace(expected, drafter=None)
    assert beam_plan(plan.alone(), 3, rule) == alone


@dataclasses.dataclass(frozen=True)
class Uneven(TableTarget):
    """A table that has other bits in calls on `rows` rows and `wide` tokens or more."""

    rows: int = 6
    wide: int = 2

    def decode(self, params, tokens, cache, **others):
        output, fed = super().decode(params, tokens, cache, **others)
        rows, width = tokens.shape
        if rows != self.rows or width < self.wide:
            return output, fed
        return output._replace(logits=1.01 * output.logits), fed


class Refusing(TableTarget):
    def decode(self, params, tokens, cache, **others):
        raise AssertionError("was measured")


def test_the_bits_of_all_rows_of_a_call_are_measured(read):
    engine = engine_of(plan_of(Uneven(9), schedule=Fixed(1), same_bits=True), 2)
    assert engine.params["target"]["logits"].shape == (1, 9, 9, 9)
    with pytest.raises(NotTheSameBits, match="token 1 of a call on 2 .* with BATCH_SIZE 6;"):
        _ = engine_of(engine.plan, 2).sampled(3).params
    with pytest.raises(NotTheSameBits, match="BATCH_SIZE 6;"):
        _ = engine_of(engine.plan, 6).params
    refusing = plan_of(Refusing(9), same_bits=True)
    for plan in (refusing.alone(), dataclasses.replace(refusing, same_bits=False)):
        assert engine_of(plan, 6).params.keys() >= {"target"}


def test_the_bits_of_a_search_are_measured_with_all_its_rows(read):
    """Its own calls are, and not those of decoding; scores that differ are enough."""
    plan = plan_of(Uneven(9, rows=2, wide=4), schedule=Fixed(1), max_length=3, same_bits=True)
    engine = engine_of(plan, 2)
    search = searching(engine, beam_plan(plan, 2, T5XBeams(), width=2, depth=1))
    with pytest.raises(NotTheSameBits, match="for 2 beams has other bits .* BATCH_SIZE 2;"):
        _ = search.params
    assert search.alone().params.keys() == {"target"}
