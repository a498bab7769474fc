"""The decoder layers of T5 in four kernels each, for the steps of a draft on a GPU.

XLA makes about 22 kernels of a layer. At batch 1 each has little to do, so their number decides how
long a step takes. Here they are four:

  kernel    a program has                       reads              makes
  project   `COLUMNS` of queries, keys or       stream, parts      stream, queries, keys, values
            values
  attend    a head, a part of the outputs       these, the cache   the cache's new slots, parts
  cross     a head, a part of the outputs       stream, parts,     stream, parts
                                                the inputs' cache
  mlp       `UNITS` of the MLP                  stream, parts      stream, parts

Parts [any, T, D] are the terms that the programs of one kernel add to the stream [T, D]. In the
next kernel, every program computes their whole sum, since programs cannot wait for each other.

The kernels are written in Pallas for Triton. The stream is float32, so a bfloat16 model rounds
differently than in `t5.network`. A draft may: it is verified with the distribution that it was
drawn from.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import MASKED
from specdec.models.layers.layers import ACTIVATIONS
from specdec.models.t5.config import T5Config
from specdec.types import Array, PyTree

TOKENS = 2  # of the widest call: a draft begins with two tokens
SLOTS = 1024  # of the longest output, and of the longest input

# These sizes were the fastest of those tried for T5-small in bfloat16 on one NVIDIA H200.
COLUMNS = 16  # of a kernel [in, out] of queries, keys or values, in each program
UNITS = 32  # of the MLP, in each program
SPLIT = 8  # parts of the outputs of attention
WARPS = {"project": 4, "attend": 4, "cross": 8, "mlp": 8}


def fits(config: T5Config, rows: int, tokens: int, cache: KVCache) -> bool:
    """Returns whether the kernels can compute a call on [rows, tokens] with this cache."""
    slots = max(cache.slot_count, cache.inputs_mask.shape[1])
    sizes = {config.num_heads * config.head_dim: COLUMNS, config.mlp_dim: UNITS}
    even = all(size % part == 0 for size, part in (*sizes.items(), (config.emb_dim, SPLIT)))
    even &= _block(config.head_dim) == config.head_dim
    return rows == 1 and tokens <= TOKENS and slots <= SLOTS and even


def run(
    config: T5Config,
    params: Mapping[str, PyTree],
    x: Array,
    cache: KVCache,
    layers: Sequence[int],
    biases: Sequence[Array],
    cross_bias: Array,
) -> tuple[Array, KVCache]:
    """Runs `layers` on the first one's input x [1, T, D]; returns their output and the cache."""
    keys, values = list(cache.keys), list(cache.values)
    mask, stream = cross_bias[0, 0, 0], [x[0].astype(jnp.float32)]
    for i, bias in zip(layers, biases, strict=True):
        layer = _Layer(config, params[f"layers_{i}"])
        *stream, keys[i], values[i] = layer.attend(
            stream, bias[0], cache.length, keys[i], values[i]
        )
        stream = layer.cross(stream, mask, cache.cross_keys[i], cache.cross_values[i])
        stream = layer.mlp(stream)
    added = sum((jnp.sum(parts, axis=0) for parts in stream[1:]), start=stream[0])
    return added[None], cache.replace(keys=tuple(keys), values=tuple(values))


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A decoder layer's sub-layers. A stream is a list of float32 arrays: [T, D], parts to add."""

    config: T5Config
    params: Mapping[str, PyTree]

    def attend(
        self, stream: list[Array], bias: Array, length: Array, keys: Array, values: Array
    ) -> list[Array]:
        """Returns the stream's arrays after self-attention, then keys and values with new slots."""
        config = self.config
        heads, joined = config.num_heads, config.num_heads * config.head_dim
        weights = self._weights("self_attention", "pre_self_attention_layer_norm")
        new = jax.ShapeDtypeStruct((stream[0].shape[0], joined), config.dtype)
        grid = (joined // COLUMNS, 3)
        added, *results = self._call(_project, grid, weights, stream, [stream[0], new, new, new])
        arguments = bias, length, *results, keys, values
        results = [self._parts(stream, heads), keys, values]
        kernel = weights[0]["out"]["kernel"]
        return [added, *self._call(_attend, (heads, SPLIT), kernel, arguments, results, written=2)]

    def cross(self, stream: list[Array], mask: Array, keys: Array, values: Array) -> list[Array]:
        """Returns the stream's arrays after attention to the encoder's output."""
        heads = self.config.num_heads
        weights = self._weights("encoder_decoder_attention", "pre_cross_attention_layer_norm")
        results = [stream[0], self._parts(stream, heads)]
        return self._call(_cross, (heads, SPLIT), weights, (stream, mask, keys, values), results)

    def mlp(self, stream: list[Array]) -> list[Array]:
        """Returns the stream's arrays after the MLP."""
        programs = self.config.mlp_dim // UNITS
        weights = self._weights("mlp", "pre_mlp_layer_norm")
        results = [stream[0], self._parts(stream, programs)]
        return self._call(_mlp, (programs, 1), weights, stream, results)

    def _weights(self, name: str, norm: str) -> tuple[PyTree, Array]:
        return self.params[name], self.params[norm]["scale"]

    def _parts(self, stream: list[Array], programs: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((programs, *stream[0].shape), jnp.float32)

    def _call(
        self,
        kernel: Callable[..., None],
        grid: tuple[int, ...],
        weights: PyTree,
        arguments: PyTree,
        results: Sequence[Array | jax.ShapeDtypeStruct],
        written: int = 0,
    ) -> list[Array]:
        """Runs a kernel whose last `written` arguments become its last results, in place."""
        name = kernel.__name__[1:]
        flat, tree = jax.tree.flatten((weights, arguments))

        def call(*refs: _Ref) -> None:
            kernel(self.config, *jax.tree.unflatten(tree, refs[: len(flat)]), *refs[len(flat) :])

        first, last = len(flat) - written, len(results) - written
        run = functools.partial(
            pl.pallas_call,
            call,
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
            grid=grid,
            input_output_aliases={first + n: last + n for n in range(written)},
            compiler_params=triton.CompilerParams(num_warps=WARPS[name], num_stages=1),
            name=f"t5_{name}",
        )
        return jax.lax.platform_dependent(*flat, cpu=run(interpret=True), default=run())


def _project(config: T5Config, weights, stream, added, *results) -> None:
    attention, scale = weights
    columns, dims = _Range(pl.program_id(0) * COLUMNS, COLUMNS), _Range(0, config.emb_dim)
    x = _normed(config, stream, scale, added)
    for n, (name, out) in enumerate(zip(("query", "key", "value"), results, strict=True)):

        @pl.when(pl.program_id(1) == n)
        def _(name: str = name, out: _Ref = out) -> None:
            kernel = _read(attention[name]["kernel"], dims, columns)
            for token, state in enumerate(x):
                _write(_product(state, kernel), out, token, columns)


def _attend(config: T5Config, kernel, inputs, parts, new_keys, new_values) -> None:
    bias, length, query, key, value, keys, values = inputs
    tokens, head, first = range(query.shape[0]), pl.program_id(0), length[0]
    slots, dims = _Range(0, keys.shape[2]), _Range(0, config.head_dim)
    head_range, outputs = _Range(head * config.head_dim, config.head_dim), _outputs(config)
    kernel = _read(kernel, head_range, outputs)
    keys, values = (_read(x, 0, head, slots, dims) for x in (keys, values))
    query = [_read(query, token, head_range) for token in tokens]
    for token in tokens:
        here, new = (slots.index == first + token)[:, None], []
        for x, out in ((key, new_keys), (value, new_values)):
            x = _read(x, token, head_range)
            x = jnp.where(jnp.abs(x) < jnp.inf, x, 0.0)  # as `KVCache.write` does
            at, once = (0, head, first + token, dims), pl.program_id(1) == 0
            _write(x, out, *at, only=once)
            new.append(x[None])
        keys, values = jnp.where(here, new[0], keys), jnp.where(here, new[1], values)
    for token in tokens:
        logits = jnp.sum(keys * query[token][None], axis=1)
        logits += _read(bias, head, token, slots, outside=MASKED)
        mixed = _mixed(logits, values, config.dtype)
        _write(_product(mixed, kernel), parts, head, token, outputs)


def _cross(config: T5Config, weights, inputs, added, parts) -> None:
    (attention, scale), (stream, mask, keys, values) = weights, inputs
    head, slots = pl.program_id(0), _Range(0, mask.shape[0])
    dims, outputs = _Range(0, config.head_dim), _outputs(config)
    head_range = _Range(head * config.head_dim, config.head_dim)
    kernel = _read(attention["query"]["kernel"], _Range(0, config.emb_dim), head_range)
    keys, values = _read(keys, 0, head, dims, slots), _read(values, 0, head, slots, dims)
    mask = _read(mask, slots, outside=MASKED)
    last = _read(attention["out"]["kernel"], head_range, outputs)
    for token, x in enumerate(_normed(config, stream, scale, added)):
        query = _rounded(_product(x, kernel), config.dtype)
        logits = jnp.sum(keys * query[:, None], axis=0) + mask
        mixed = _mixed(logits, values, config.dtype)
        _write(_product(mixed, last), parts, head, token, outputs)


def _mlp(config: T5Config, weights, stream, added, parts) -> None:
    mlp, scale = weights
    units, dims = _Range(pl.program_id(0) * UNITS, UNITS), _Range(0, config.emb_dim)
    names = sorted(name for name in mlp if name != "wo")
    kernels = [_read(mlp[name]["kernel"], dims, units) for name in names]
    last = _read(mlp["wo"]["kernel"], units, dims)
    for token, x in enumerate(_normed(config, stream, scale, added)):
        gates = [
            ACTIVATIONS[activation](_rounded(_product(x, kernel), config.dtype))
            for activation, kernel in zip(config.mlp_activations, kernels, strict=True)
        ]
        hidden = _rounded(math.prod(gates[1:], start=gates[0]), config.dtype)
        _write(_product(hidden, last), parts, pl.program_id(0), token, dims)


def _normed(config: T5Config, stream: Sequence[_Ref], scale: _Ref, added: _Ref) -> list[Array]:
    """Returns the norm [D] of each token's stream, which the first program writes to `added`."""
    (before, *others), dims = stream, _Range(0, config.emb_dim)
    scale, rows = _read(scale, dims).astype(config.dtype), []
    once = (pl.program_id(0) == 0) & (pl.program_id(1) == 0)
    for token in range(before.shape[0]):
        x = _read(before, token, dims)
        for parts in others:
            x += jnp.sum(_read(parts, _Range(0, parts.shape[0]), token, dims), axis=0)
        _write(x, added, token, dims, only=once)
        x *= jax.lax.rsqrt(jnp.sum(x * x) / config.emb_dim + config.layer_norm_epsilon)
        rows.append((x.astype(config.dtype) * scale).astype(jnp.float32))
    return rows


def _product(x: Array, kernel: Array) -> Array:
    """Multiplies [in] by a kernel [in, out]."""
    return jnp.sum(x[:, None] * kernel, axis=0)


def _mixed(logits: Array, values: Array, dtype: str) -> Array:
    """Returns values [C, head_dim], weighted by the softmax of logits [C]."""
    weights = jnp.exp(logits - jnp.max(logits, axis=0))
    weights = _rounded(weights / jnp.sum(weights, axis=0), dtype)
    return _rounded(jnp.sum(weights[:, None] * values, axis=0), dtype)


def _rounded(x: Array, dtype: str) -> Array:
    return x.astype(dtype).astype(jnp.float32)


class _Range:
    """Indices of one axis of an array, in a block whose size is a power of two."""

    def __init__(self, start: Array | int, size: int):
        index = jnp.arange(_block(size), dtype=jnp.int32)
        self.inside, self.index = index < size, start + index


_Index: TypeAlias = Array | int | _Range


_Ref: TypeAlias = Any  # Pallas's reference to an array that a kernel reads or writes


def _outputs(config: T5Config) -> _Range:
    """Returns the range of the attention's output dimensions that this program computes."""
    size = config.emb_dim // SPLIT
    return _Range(pl.program_id(1) * size, size)


def _block(size: int) -> int:
    """Returns the least power of two that is not below a size."""
    return 1 << (size - 1).bit_length()


def _read(ref: _Ref, *index: _Index, outside: float = 0.0) -> Array:
    """Reads numbers as float32; those outside of ranges are `outside`."""
    places, mask = _places(index)
    return triton.load(ref.at[places], mask=mask, other=outside).astype(jnp.float32)


def _write(x: Array, ref: _Ref, *index: _Index, only: Array | bool = True) -> None:
    """Writes numbers to the places inside of ranges, if `only` holds."""
    places, mask = _places(index)
    triton.store(ref.at[places], x.astype(ref.dtype), mask=mask & only)


def _places(index: Sequence[_Index]) -> tuple[tuple[Array | int, ...], Array]:
    """Returns index arrays that span the ranges, and a mask of the indices inside the ranges."""
    ranges = [entry for entry in index if isinstance(entry, _Range)]

    def spread(of: Array, entry: _Range) -> Array:
        return jnp.expand_dims(of, tuple(i for i, x in enumerate(ranges) if x is not entry))

    mask = functools.reduce(jnp.logical_and, (spread(x.inside, x) for x in ranges))
    return tuple(spread(x.index, x) if isinstance(x, _Range) else x for x in index), mask
