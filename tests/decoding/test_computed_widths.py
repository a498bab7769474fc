"""Calls on one token that are computed with two: pytest tests/decoding/test_computed_widths.py"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import device_of, tiny_t5

from specdec.decoding import decode, row_keys, score
from specdec.drafters import Autoregressive
from specdec.models.placement import device, layouts, single_rows
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed, Heuristic
from specdec.types import Array, Params
from specdec.verifiers import GreedyMatch

V, N = 40, 12
PLAIN = T5Target(tiny_t5(V, 16, 24, decoder=2))
PAIRED = PLAIN.in_layout(least_width=2)
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, V, [3, 7]), jnp.int32)


@functools.cache
def params():
    """Logits far apart, so that no near-tie is decided by rounding."""
    return jax.tree.map(lambda x: 3 * x, PLAIN.init(jax.random.key(1)))


def plan(target, drafter, schedule) -> Plan:
    return Plan(target, drafter, GreedyMatch(), schedule, Greedy(), N, stop_ids=())


def decoded(plan: Plan):
    roles = {role: params() for role in plan.owned()}
    keys = row_keys(0, jnp.arange(len(INPUTS)))
    return jax.device_get(decode(Params(**roles), keys, INPUTS, plan))


def alone(target):
    return decoded(plan(target, of_model(target), Fixed(1)).alone())


@pytest.mark.ci
def test_the_target_alone_fills_its_cache():
    """To the last slot: a write behind it would be shifted silently."""
    found, expected = alone(PAIRED), alone(PLAIN)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)  # of 12 tokens
    assert expected.length.tolist() == [N, N, N]


def of_model(model):
    return Autoregressive(model, Greedy())


@pytest.mark.ci
def test_a_drafter_equal_to_the_target_changes_nothing():
    found = decoded(plan(PAIRED, of_model(PAIRED), Heuristic(2, (1, 4))))
    np.testing.assert_array_equal(found.tokens, alone(PLAIN).tokens)


@pytest.mark.ci
def test_one_token_is_scored():
    targets = jnp.array([[5], [6], [7]], jnp.int32)
    found, expected = (score(params(), INPUTS, targets, target=t) for t in (PAIRED, PLAIN))
    np.testing.assert_allclose(found, expected, atol=1e-5)  # a sum of 40 exponentials


def test_parts_have_the_widths_that_are_computed():
    one = plan(PAIRED, of_model(PAIRED), Fixed(4))
    assert [tuple(part) for part in one.parts()] == [("target", 5, 1), ("draft", 2, 4)]
    assert [tuple(part) for part in one.alone().parts()] == [("target", 2, 1)]
    other = plan(PLAIN, of_model(PAIRED), Fixed(4))
    assert [tuple(part) for part in other.alone().parts()] == [("target", 1, 1)]


@pytest.mark.parametrize("of_two, least", [(0.5, 2), (0.97, 1), (2.0, 1)])
def test_products_of_a_cpu_decide(of_two, least):
    """In either layout; calls of several tokens do not ask."""
    measured = device_of(dict.fromkeys(device.TOKENS, "in_out"))
    slow = {
        size: {order: {**times, 2: of_two * times[1]} for order, times in by_order.items()}
        for size, by_order in measured.milliseconds.items()
    }
    given = dataclasses.replace(measured, milliseconds=slow)
    assert PLAIN.laid_out({1: 1.0}, given).layout.least_width == least
    assert PLAIN.laid_out({2: 1.0, 1: 6.0}, given).layout.least_width == least
    assert PLAIN.laid_out({5: 1.0}, given).layout.least_width == 1
    assert PAIRED.laid_out({5: 1.0}, given).layout.least_width == 1
    assert layouts.without_single({2: 1.0, 1: 6.0, 5: 1.0}) == {2: 7.0, 5: 1.0}


@pytest.mark.parametrize(
    "times, least, in_bfloat16",
    [([2.0, 1.0], 2, 2), ([1.0, 0.97], 1, 2), ([1.0, 1.03], 1, 1), ([1.0, 2.0], 1, 1)],
)
def test_whole_calls_of_other_devices_decide(times, least, in_bfloat16, monkeypatch):
    """In bfloat16 two tokens are taken wherever they cost nothing: rows have one kind of bits."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.delenv(device.SETTING, raising=False)
    monkeypatch.setattr(single_rows, "seconds", lambda model: times)
    single_rows.least_width.cache_clear()
    assert PLAIN.laid_out({1: 1.0}).layout.least_width == least
    rounded = dataclasses.replace(PLAIN.config, dtype="bfloat16")
    assert T5Target(rounded).laid_out({1: 1.0}).layout.least_width == in_bfloat16
    assert PLAIN.laid_out({2: 1.0}).layout.least_width == 1
    monkeypatch.setenv(device.SETTING, device.STORED)
    assert PLAIN.laid_out({1: 1.0}).layout.least_width == 1
    single_rows.least_width.cache_clear()


@pytest.mark.parametrize(
    "times, chosen",
    [
        ({"plain": 4.0, "joined": 2.0, "paired": 3.0}, "joined"),
        ({"plain": 4.0, "joined": 3.0, "paired": 2.0}, "paired"),
        ({"plain": 4.0, "joined": None, "paired": 2.0}, "paired"),  # this device cannot
        ({"plain": 4.0, "joined": 3.9, "paired": 4.0}, "plain"),  # no more than by chance
        ({"plain": 4.0, "joined": None, "paired": None}, "plain"),
    ],
)
def test_the_fastest_way_of_a_call_is_taken_if_it_is_clearly_faster(times, chosen, monkeypatch):
    """Of several rounds the least time counts, and 32 calls are one run."""
    ways = {"plain": PLAIN, "joined": PLAIN.in_layout(joined=True), "paired": PAIRED}
    can = {name: seconds for name, seconds in times.items() if seconds}
    calls = itertools.count()

    def run(model, width):
        (name,) = (name for name, one in ways.items() if one == model)
        if name not in can:
            raise NotImplementedError("on this device")
        return lambda: jnp.zeros([])

    now = [0.0]

    def perf_counter():
        call = next(calls)
        if call % 2:
            turn, way = divmod(call // 2, len(can))
            now[0] += list(can.values())[way] * (2 if turn != 1 else 1)
        return now[0]

    monkeypatch.setattr(single_rows, "_run", run)
    monkeypatch.setattr(single_rows, "time", types.SimpleNamespace(perf_counter=perf_counter))
    single_rows.fastest.cache_clear()
    assert single_rows.fastest(tuple(ways.values())) == ways[chosen]
    single_rows.fastest.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(single_rows, "_seconds", lambda runs: [1.0, layouts.FASTER, 1.0][: len(runs)])
        assert single_rows.fastest(tuple(ways.values())) == PLAIN  # not beyond the margin
        single_rows.fastest.cache_clear()
    calls = itertools.count()
    found = single_rows.seconds([(ways[name], 1) for name in can])
    assert found == pytest.approx([seconds / 32 for seconds in can.values()])


@flax.struct.dataclass
class Length:
    """A cache that holds its length."""

    length: Array

    def rewind(self, length: Array) -> Length:
        return Length(length)


@dataclasses.dataclass(frozen=True)
class Counting:
    """A model of one layer whose argmax is the token after the given one, after as many tokens."""

    encoded_dim: int | None
    layers: int = 3
    axis_rules: tuple = (("batch", "data"),)
    dtype: str = "bfloat16"
    states_dim = None

    def first(self, layers: int) -> Counting:
        return dataclasses.replace(self, layers=layers)

    def parameter_shapes(self) -> dict:
        assert (self.layers, self.axis_rules) == (1, ())
        return {name: jax.ShapeDtypeStruct([4], "float32") for name in ("decoder", "encoder")}

    def inputs_shape(self, rows: int, length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct([rows, length], "int32")

    def encoded_shape(self, inputs: Array) -> tuple[int, ...]:
        return len(inputs), inputs.shape[1] // 2

    def prefill(self, params: dict, inputs: Array, capacity: int) -> Length:
        assert (inputs.shape, capacity) == ((1, 64), 128) and self.encoded_dim is None
        return Length(jnp.full([1], 64))

    def attach(self, params: dict, encoded: Array, mask: Array, capacity: int) -> Length:
        assert (encoded.shape, mask.shape, capacity) == ((1, 32, 8), (1, 32), 128)
        return Length(jnp.full([1], 64))

    def decode(self, params: dict, tokens: Array, cache: Length) -> tuple:
        assert params["decoder"].dtype == self.dtype and "encoder" not in params
        known = (tokens == cache.length[:, None]).all()
        output = types.SimpleNamespace(logits=jax.nn.one_hot(jnp.where(known, tokens + 1, 0), 64))
        return output, Length(cache.length + tokens.shape[1])


@pytest.mark.parametrize("width, encoded_dim", [(1, None), (2, 8)])
def test_a_timed_program_has_32_calls_that_follow_each_other(width, encoded_dim):
    """Each adds one token to the cache, however many it is computed with."""
    run = single_rows._run(Counting(encoded_dim), width)
    assert run().tolist() == [[32] * width]


@pytest.mark.parametrize("backend, kernels, least", [("gpu", "triton", 1), ("tpu", "mosaic", 2)])
def test_a_draft_is_compared_with_joined_and_fused_kernels(backend, kernels, least, monkeypatch):
    """A TPU's logits remain a product of their own, whose single row may be slow."""
    compared = []
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(
        single_rows, "fastest", lambda models: compared.append(models) or models[-1]
    )
    joined = PAIRED.in_layout(joined=True)
    fused = PAIRED.in_layout(fused=kernels, least_width=least)
    assert PAIRED.drafting() == fused and compared == [(PAIRED, joined, fused)]
    ways = (
        {"layout": layouts.Layout("out_in")},
        {"weights": "int8"},
        {"axis_rules": (("batch", "data"),)},
    )
    for one in (joined, fused, *(dataclasses.replace(PAIRED, **way) for way in ways)):
        assert one.drafting() == one
    monkeypatch.setenv(device.SETTING, device.STORED)
    assert PAIRED.drafting() == PAIRED and len(compared) == 1


def test_eight_bits_of_kernels_alone_have_one_layout():
    given = device_of(dict.fromkeys(device.TOKENS, "in_out"))
    rounded = dataclasses.replace(PLAIN, weights="int8")
    for calls in ({1: 1.0}, {8: 1.0}):
        assert rounded.laid_out(calls, given) == rounded.in_layout(storage="out_in")
