"""Times calls on one token and on two tokens on the default device, to choose the faster.

Some devices compute the product of a single row by other and slower code than that of two rows: a
TPU uses its vector unit. On such a device, a call of `decode` on one token is computed with a
second token, and its result is discarded; see `Target.computed_width`.

For a T5 at batch 1, calls with joined and with fused kernels are timed as well.

On CPUs nothing is timed here, but single products in `specdec.models.placement.device`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp

from specdec.common import progress
from specdec.models.placement.layouts import FASTER
from specdec.types import Array, Cache, ModelOutput, PyTree

INPUTS, SLOTS = 64, 128  # tokens of a made-up input, and slots of the cache
CALLS = 32  # in one program, so that starting it takes a small share of the time
ROUNDS = 5  # of both programs in turn; the least time of each counts


T = TypeVar("T", bound="TimedModel")


class TimedModel(Protocol):
    """A `StackModel` whose calls are timed."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def states_dim(self) -> int | None: ...
    @property
    def encoded_dim(self) -> int | None: ...
    @property
    def dtype(self) -> str: ...
    def first(self: T, layers: int) -> T: ...
    def parameter_shapes(self) -> PyTree: ...
    def inputs_shape(self, rows: int, length: int) -> PyTree: ...
    def encoded_shape(self, inputs: PyTree) -> tuple[int, ...]: ...
    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Cache: ...
    def decode(self, params: PyTree, tokens: Array, cache: Cache) -> tuple[ModelOutput, Cache]: ...


@functools.cache
def least_width(model: TimedModel) -> int:
    """Returns 2 if a call on two tokens is faster than one on a single token, otherwise 1.

    In float32 it has to save 5% of the time, in bfloat16 any time. A call on one token gives other
    bits than a call on several, so texts with and without drafts differ less often with 2.
    """
    if model.states_dim is not None:  # it reads whole blocks
        return 1
    with progress.stage("measuring", "measuring calls on one and two tokens"):
        one, two = seconds([(model, 1), (model, 2)])
    return 2 if two < (FASTER if model.dtype == "float32" else 1.0) * one else 1


class _Attaching(Protocol):
    def attach(self, params: PyTree, encoded: Array, mask: Array, capacity: int, /) -> Cache: ...


@functools.cache
def fastest(models: tuple[TimedModel, ...]) -> Any:
    """Returns the model with the fastest call on one token, or the first if that is nearly as fast.

    Later models are left out if this device or this JAX cannot compute them. A first model that
    reads whole blocks is returned without timing.
    """
    plain, *others = models
    if plain.states_dim is not None:  # it reads whole blocks
        return plain
    with progress.stage("measuring", "measuring ways to compute a draft"):
        runs = {plain: _run(plain, 1)}
        for model in others:
            with contextlib.suppress(Exception):  # of a compiler, or a library that has gone
                runs[model] = _run(model, 1)
        first, *times = _seconds(list(runs.values()))
    best = min(times, default=first)
    return list(runs)[1 + times.index(best)] if best < FASTER * first else plain


def seconds(calls: Sequence[tuple[TimedModel, int]]) -> list[float]:
    """Returns the seconds of a call for each pair of a model and the call's number of tokens.

    The call computes only one decoder layer and the logits, on one device, with parameters and a
    cache of zeros.
    """
    return _seconds([_run(model, width) for model, width in calls])


def _seconds(runs: Sequence[Callable[[], Array]]) -> list[float]:
    seconds_of_runs: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, times in zip(runs, seconds_of_runs, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run())
            times.append((time.perf_counter() - start) / CALLS)
    return [min(times) for times in seconds_of_runs]


def _run(model: TimedModel, width: int) -> Callable[[], Array]:
    """Returns a function without arguments that runs `CALLS` calls of a model; it has run once."""
    shallow = dataclasses.replace(model.first(1), axis_rules=())
    shapes = shallow.parameter_shapes()
    cache = jax.eval_shape(functools.partial(_begun, shallow), shapes)
    read = {name: leaf for name, leaf in shapes.items() if name != "encoder"}
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, shallow.dtype), read)
    cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), cache)
    run = functools.partial(jax.jit(functools.partial(_calls, shallow, width)), params, cache)
    jax.block_until_ready(run())
    return run


def _begun(model: TimedModel, params: PyTree) -> Cache:
    """Returns the cache after inputs of zeros."""
    inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), model.inputs_shape(1, INPUTS))
    if model.encoded_dim is None:
        return model.prefill(params, inputs, SLOTS)
    shape = model.encoded_shape(inputs)
    encoded = jnp.zeros([*shape, model.encoded_dim], model.dtype)
    return cast(_Attaching, model).attach(params, encoded, jnp.ones(shape, bool), SLOTS)


def _calls(model: TimedModel, width: int, params: PyTree, cache: Cache) -> Array:
    """Returns the last tokens of repeated calls, each fed with the argmaxes of the one before."""

    def call(_: Array, state: tuple[Array, Cache]) -> tuple[Array, Cache]:
        tokens, cache = state
        output, fed = model.decode(params, tokens, cache)
        best = jnp.argmax(output.logits, axis=-1).astype(jnp.int32)
        return best, fed.rewind(cache.length + 1)

    first = jnp.zeros([1, width], jnp.int32)
    return jax.lax.fori_loop(0, CALLS, call, (first, cache))[0]
