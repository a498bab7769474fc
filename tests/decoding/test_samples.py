"""Samples that share a reading of their text: pytest tests/decoding/test_samples.py"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_outputs import Made, output_of
from test_combinations import DRAFTERS, RULES, SCHEDULES, TARGET, TREES
from test_refilling import CONFIGS, GEMMA, SIZES
from tolerances import SMALL_LOGITS

from specdec.decoding import decode, program, row_keys
from specdec.decoding.program import GivenBatch, Sampled
from specdec.decoding.rows import repeated
from specdec.drafters import Autoregressive
from specdec.models.contract.cache import KVCache
from specdec.models.contract.model import Target
from specdec.models.families import model_of
from specdec.models.t5gemma2 import T5Gemma2Config
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import Constant, TableTarget
from specdec.types import Params
from specdec.verifiers import Block

ROWS, LONGEST, SAMPLES = 2, 8, 3
TEXTS = np.random.default_rng(0).integers(2, 5, [2, ROWS, 3]).astype(np.int32)
# One attention over inputs and outputs.
MERGED = T5Gemma2Config(**SIZES, **GEMMA, pattern=2, rope_factor=8.0)
DRAWN = RULES["drawn, processed"]


def given():
    """Batches of two texts with three samples each."""
    live = np.ones(ROWS, bool)
    for i, inputs in enumerate(TEXTS):
        keys = [row_keys(0, ROWS * i + jnp.arange(ROWS), sample) for sample in range(SAMPLES)]
        inputs = jnp.asarray(inputs)  # one object for all samples
        yield from (GivenBatch(one, inputs, live) for one in keys)


def plan_of(drafter, target: Target = TARGET, rule=DRAWN, schedule=SCHEDULES["guarded"]):
    return Plan(target, drafter, Block(), schedule, rule, LONGEST)


@pytest.mark.ci
def test_samples_together_are_those_of_separate_calls():
    plan = plan_of(DRAFTERS["model"](DRAWN))
    params, prefix = plan.params(TREES), jnp.tile(jnp.array([[0, 4]], jnp.int32), (ROWS, 1))
    found = list(Sampled(plan, SAMPLES, prefix=prefix).outputs(params, given()))
    assert_same_texts(params, plan, found, list(given()), prefix)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["t5", "t5gemma2"])
def test_samples_share_the_keys_of_their_input(name):
    target, rule = model_of({"t5": CONFIGS["t5"], "t5gemma2": MERGED}[name]), Sampling(0.7)
    plan = plan_of(Autoregressive(target, rule), target, rule, Fixed(3))
    trees = {"target": target.init(jax.random.key(3)), "draft": target.init(jax.random.key(4))}
    params = plan.params(trees)
    batches = list(given())
    found = list(Sampled(plan, SAMPLES).outputs(params, batches))
    assert_same_texts(params, plan, found, batches)
    state = program.decoding.prefill(params, batches[0].keys, batches[0].inputs, plan)
    for shared, rows in {True: ROWS, False: SAMPLES * ROWS}.items():
        cache = repeated(state, SAMPLES, shared=shared).cache
        assert isinstance(cache, KVCache)
        assert {len(x) for x in cache.keys} == {SAMPLES * ROWS}
        assert {len(x) for x in cache.cross_keys} == {rows}


def assert_same_texts(params, plan, found, batches, prefix=None):
    assert len({tuple(output.tokens[0]) for output, _ in found}) > 2
    for (output, seconds), batch in zip(found, batches, strict=True):
        right = decode(params, batch.keys, batch.inputs, plan, prefix=prefix)
        right = jax.device_get(right)
        assert seconds > 0 and output.trace.steps == right.trace.steps
        for row in range(ROWS):
            assert output.row(row) == right.row(row)
        np.testing.assert_allclose(output.log_probs, right.log_probs, atol=SMALL_LOGITS)


@pytest.mark.parametrize("together", [1, pytest.param(3, marks=pytest.mark.ci)])
def test_a_text_is_read_once_and_samples_wait_for_no_text(together, monkeypatch):
    """A text's outputs are there before the next text is asked for."""
    plan, asked = plan_of(Constant(2), schedule=Fixed(1)), []

    def texts():
        for number, batch in enumerate(given()):
            asked.append(number)
            yield batch

    calls: list[int] = []
    samples, prefill = Sampled(plan, together), program.decoding.prefill
    samples._prefill = program.Program(
        lambda *read: jax.debug.callback(lambda: calls.append(1)) or prefill(*read, plan)
    )
    found = list(itertools.islice(samples.outputs(plan.params(TREES), texts()), SAMPLES))
    jax.effects_barrier()
    assert len(found) == SAMPLES and asked == [*range(SAMPLES)] and calls == [1]


@dataclasses.dataclass(frozen=True)
class Shares(TableTarget):
    """A table that has keys of its inputs, as real models have, and notes down rows of calls."""

    calls: ClassVar[set[tuple[int, ...]]] = set()

    def prefill(self, params, inputs, capacity):
        cache = super().prefill(params, inputs, capacity)
        keys = (jnp.zeros([len(inputs), 1, 1, 1]),)
        return cache.replace(cross_keys=keys, cross_values=keys)

    def decode(self, params, tokens, cache, **others):
        shared = cache.cross_keys[0], cache.cross_values[0], cache.inputs_mask
        self.calls.add((len(tokens), *map(len, shared)))
        return super().decode(params, tokens, cache, **others)


@pytest.mark.parametrize("same_bits, shared", [(False, 2), (True, 6)])
def test_samples_share_the_keys_of_their_input_unless_the_same_bits_are_asked_for(
    same_bits, shared
):
    """More tokens would be multiplied by the keys of an input in one call."""
    target = Shares(5, classes=3)
    plan = plan_of(Constant(2), target, Sampling(), Fixed(1))
    plan = dataclasses.replace(plan, same_bits=same_bits)
    params, (batch, *_) = Params(target.init(jax.random.key(0))), given()
    target.calls.clear()
    for one, arguments in Sampled(plan, 3).parts(params, batch.keys, batch.inputs):
        one.lower(*arguments)
    assert target.calls == {(6, shared, shared, shared)}


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
def test_a_call_has_the_rows_of_all_its_samples(monkeypatch, samples):
    """The last one's keys fill a call that has too few; two texts have rows one after the other."""
    asked: list = []
    way = Sampled(plan_of(Constant(2)), 4)

    class Execute:
        out_info = ()

        def __call__(self, params, keys, inputs):
            if len(keys) == 2:
                return inputs
            asked.append((params, keys.tolist(), inputs))
            return output_of(*(Made([row], [-row / 8], [1] * (1 + row % 4)) for row in range(8)))

    monkeypatch.setattr(program.Program, "compile", lambda *given: Execute())
    batches: list[Any] = [
        GivenBatch(jnp.array([10 + n, 20 + n]), "texts", np.ones(2, bool)) for n in range(samples)
    ]
    found = list(way.outputs("weights", batches))
    own = [min(n, samples - 1) for n in range(4)]
    assert asked == [("weights", [*(10 + n for n in own), *(20 + n for n in own)], "texts")]
    assert [output.tokens.tolist() for output, _ in found] == [
        [[n], [4 + n]] for n in range(samples)
    ]
    assert [output.trace.steps for output, _ in found] == [1 + n for n in range(samples)]
    assert len({seconds for _, seconds in found}) == 1


def test_samples_of_several_texts_are_those_of_each_text():
    """Row after row, with the keys of its own samples."""
    target = TableTarget(5, classes=3)
    plan = plan_of(Constant(2), target, Sampling(), Fixed(1))
    params = Params(target.init(jax.random.key(0)))
    batches = list(given())
    found = list(Sampled(plan, SAMPLES).outputs(params, batches))
    assert_same_texts(params, plan, found, batches)


def test_a_state_without_rows_is_refused():
    plan = plan_of(DRAFTERS["model"](DRAWN))
    params, (batch, *_) = plan.params(TREES), given()
    state = program.decoding.prefill(params, batch.keys, batch.inputs, plan)
    state = state.replace(drafter=jnp.zeros([3, 1]))
    assert repeated(state, 1) is state
    says = r"the state\.drafter is float32\[3, 1\] for 2 rows.*give SAMPLES_TOGETHER = 1"
    with pytest.raises(ValueError, match=says):
        repeated(state, 2)
