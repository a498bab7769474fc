"""The decoder layers of T5 in one kernel, for the steps of a draft on a TPU.

XLA makes 16 to 18 fusions of a layer. At batch 1 each has little to do beyond reading parameters.
Here one kernel computes all layers. Their arrays stay in the chip's memory and stream through VMEM,
which has room for one layer, in three parts:

  part      its arrays in VMEM                                     makes
  attend    query, key, value, out; scale, bias; keys, values      new slots of the cache, stream
  cross     query, out; scale; keys and values of the inputs       stream
  mlp       the kernels of the MLP; scale                          stream

When a part of one layer is computed, the arrays of the next layer's same part are copied to its
place, while the two other parts are computed. The stream [T, D] never leaves VMEM.

A TPU multiplies rows of 128 numbers, and a head of T5 has 64. So one product serves all heads: a
token has a row for each head, with zeros in place of the other heads' queries.

The kernel is written in Pallas for Mosaic. The stream is float32, so a bfloat16 model rounds
differently than in `t5.network`, as with the kernels of `t5.fused`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from specdec.models.contract.cache import KVCache
from specdec.models.layers.layers import ACTIVATIONS
from specdec.models.layers.products import precision
from specdec.models.t5.config import T5Config
from specdec.types import Array, PyTree

TOKENS = 2  # of the widest call: a draft begins with two tokens
SLOTS = 1024  # of the longest output, and of the longest input
LANES, SUBLANES = 128, 8  # of a register
VMEM = 2**26  # bytes, where there is no TPU to ask
SPARE = 2**22  # bytes of VMEM besides the arrays of a layer
INTERPRET: bool | pltpu.InterpretParams = True  # how a CPU computes the kernel

NORMS = {
    "self_attention": "pre_self_attention_layer_norm",
    "encoder_decoder_attention": "pre_cross_attention_layer_norm",
    "mlp": "pre_mlp_layer_norm",
}
CACHED = ("keys", "values")


class _Ref(Protocol):
    """Pallas's reference to an array, or to semaphores."""

    shape: tuple[int, ...]
    dtype: jnp.dtype

    @property
    def at(self) -> Sequence[_Ref]: ...
    def __getitem__(self, index: object) -> Array: ...
    def __setitem__(self, index: object, x: Array) -> None: ...


_X = TypeVar("_X")  # an array, or a reference to one
_Part: TypeAlias = Mapping[str, _X]  # by name
_Layer: TypeAlias = tuple[_Part[_X], _Part[_X], _Part[_X]]  # attend, cross, mlp


def fits(config: T5Config, rows: int, tokens: int, cache: KVCache) -> bool:
    """Returns whether the kernel can compute a call on [rows, tokens] with this cache."""
    joined, dim = config.num_heads * config.head_dim, config.emb_dim
    numbers = dim * (6 * joined + (1 + len(config.mlp_activations)) * config.mlp_dim)
    slots = cache.slot_count, cache.inputs_mask.shape[1]
    numbers += sum(2 * joined * _filled(count) for count in slots)
    needed = numbers * jnp.dtype(config.dtype).itemsize + SPARE
    even = all(size == _filled(size) for size in (dim, joined, config.mlp_dim))
    short = rows == 1 and tokens <= TOKENS and max(slots) <= SLOTS
    return short and even and needed <= _vmem()


def _filled(size: int) -> int:
    """Returns the least multiple of `LANES` that is not below a size."""
    return -(-size // LANES) * LANES


def _vmem() -> int:
    """Returns the bytes of this device's VMEM."""
    is_tpu = jax.default_backend() == "tpu"
    return pltpu.get_tpu_info().vmem_capacity_bytes if is_tpu else VMEM


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
    caches, others = [], []
    for i, bias in zip(layers, biases, strict=True):
        caches.append({"keys": _joined(keys[i]), "values": _joined(values[i])})
        attend, cross, mlp = (_read(params[f"layers_{i}"], name) for name in NORMS)
        attend["bias"] = _by_row(bias[0])
        cross["keys"] = _joined(cache.cross_keys[i].swapaxes(2, 3))
        cross["values"] = _joined(cache.cross_values[i])
        others.append((attend, cross, mlp))
    stream = x[0].astype(jnp.float32)
    arguments = cache.length, caches, others, stream, cross_bias[0, 0]
    spaces = pltpu.SMEM, pltpu.HBM, pltpu.HBM, pltpu.VMEM, pltpu.VMEM
    call = functools.partial(
        pl.pallas_call,
        functools.partial(_kernel, config),
        out_shape=jax.tree.map(_shape, [caches, stream]),
        in_specs=list(map(_specs, arguments, spaces)),
        out_specs=[_specs(caches, pltpu.HBM), _specs(stream, pltpu.VMEM)],
        # The caches follow the length in `given`, and are the first arrays made.
        input_output_aliases={1 + n: n for n in range(len(jax.tree.leaves(caches)))},
        scratch_shapes=[
            jax.tree.map(lambda x: pltpu.VMEM(x.shape, x.dtype), _whole(caches[0], others[0])),
            pltpu.SemaphoreType.DMA((len(NORMS),)),
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_bytes(caches[0], others[0]) + SPARE),
        name="t5_streamed",
    )
    run = functools.partial(call, interpret=INTERPRET)
    caches, stream = jax.lax.platform_dependent(*arguments, cpu=run(), default=call())
    for i, written in zip(layers, caches, strict=True):
        keys[i], values[i] = (_apart(written[name], keys[i].shape) for name in CACHED)
    return stream[None], cache.replace(keys=tuple(keys), values=tuple(values))


def _read(layer: Mapping[str, PyTree], name: str) -> dict[str, Array]:
    """Returns the arrays of a sub-layer that a step reads."""
    module = layer[name]
    cached = ("key", "value") if name == "encoder_decoder_attention" else ()  # in the cache
    kernels = {kernel: leaf["kernel"] for kernel, leaf in module.items() if kernel not in cached}
    return {**kernels, "scale": layer[NORMS[name]]["scale"]}


def _whole(cached: _Part[_X], others: _Layer[_X]) -> _Layer[_X]:
    """Returns all arrays of a layer: `others`, with the cached keys and values in `attend`."""
    attend, cross, mlp = others
    return {**attend, **cached}, cross, mlp


def _joined(x: Array) -> Array:
    """Maps keys or values [1, H, C, head_dim] to [H * head_dim, C], as a TPU keeps them."""
    return x[0].swapaxes(1, 2).reshape(-1, x.shape[2])


def _apart(x: Array, shape: tuple[int, ...]) -> Array:
    """Maps [H * head_dim, C] back to keys or values of this shape; the inverse of `_joined`."""
    _, heads, slots, size = shape
    return x.reshape(heads, size, slots).swapaxes(1, 2)[None]


def _by_row(bias: Array) -> Array:
    """Maps [H, T, C] to [T * rows, C], with a row for each head and more to fill up registers."""
    heads, _, slots = bias.shape
    more = _rows(heads) - heads
    return jnp.pad(bias.swapaxes(0, 1), ((0, 0), (0, more), (0, 0))).reshape(-1, slots)


def _rows(heads: int) -> int:
    return -(-heads // SUBLANES) * SUBLANES


def _shape(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _specs(tree: PyTree, space: pltpu.MemorySpace) -> PyTree:
    return jax.tree.map(lambda _: pl.BlockSpec(memory_space=space), tree)


def _bytes(*trees: PyTree) -> int:
    """Returns the bytes that arrays take in VMEM, where their last axis is filled up."""
    shapes = [(x.dtype.itemsize, *x.shape) for x in jax.tree.leaves(trees)]
    return sum(math.prod(rows) * _filled(last) for *rows, last in shapes)


def _kernel(
    config: T5Config,
    length: _Ref,
    caches: Sequence[_Part[_Ref]],
    others: Sequence[_Layer[_Ref]],
    stream: _Ref,
    mask: _Ref,
    written: Sequence[_Part[_Ref]],
    out: _Ref,
    buffers: _Layer[_Ref],
    arrived: _Ref,
    stream_out: _Ref,
) -> None:
    """Computes all layers, and reads the arrays of each into `buffers` before they are needed."""
    layers = list(map(_whole, caches, others))
    attend, cross, mlp = buffers

    def read(part: int, layer: int, run: Callable[..., None]) -> None:
        run(layers[layer][part], buffers[part], arrived.at[part])

    def write(layer: int, run: Callable[..., None]) -> None:
        run({name: attend[name] for name in CACHED}, written[layer], stream_out)

    def after(layer: Array, part: int) -> None:
        """Begins to read a part of the next layer, in place of the same part of this layer."""
        for i in range(1, len(layers)):
            pl.when(layer + 1 == i)(functools.partial(read, part, i, _start))

    def compute(layer: Array, x: Array) -> Array:
        read(0, 0, _wait)  # the arrays of every layer are as large
        query = _with_new_slots(config, attend, _normed(config, attend, x), length[0])
        for i in range(len(layers)):
            pl.when(layer == i)(functools.partial(write, i, _start))
        x += _attended(config, attend, query, attend["bias"])
        write(0, _wait)
        after(layer, 0)
        read(1, 0, _wait)
        query = _product(config, _normed(config, cross, x), cross["query"])
        x += _attended(config, cross, query, mask)
        after(layer, 1)
        read(2, 0, _wait)
        x += _mlp(config, mlp, _normed(config, mlp, x))
        after(layer, 2)
        return x

    for part in range(len(buffers)):
        read(part, 0, _start)
    out[...] = jax.lax.fori_loop(0, len(layers), compute, stream[...])


def _start(source: _Part[_Ref], to: _Part[_Ref], semaphore: _Ref) -> None:
    """Begins to copy arrays."""
    for name in source:
        pltpu.make_async_copy(source[name], to[name], semaphore).start()


def _wait(source: _Part[_Ref], to: _Part[_Ref], semaphore: _Ref) -> None:
    """Waits until arrays have been copied."""
    for name in source:
        pltpu.make_async_copy(source[name], to[name], semaphore).wait()


def _normed(config: T5Config, part: _Part[_Ref], x: Array) -> Array:
    """Returns the norm of the stream [T, D], in the model's dtype."""
    mean = jnp.sum(x * x, axis=-1, keepdims=True) / config.emb_dim
    x = _rounded(x * jax.lax.rsqrt(mean + config.layer_norm_epsilon), config.dtype)
    return (x * _rounded(part["scale"][...], config.dtype)[None]).astype(config.dtype)


def _with_new_slots(config: T5Config, part: _Part[_Ref], x: Array, length: Array) -> Array:
    """Writes keys and values of tokens [T, D] to slots from `length` on; returns the queries."""
    tokens, slots = x.shape[0], part["keys"].shape[1]
    slot = jax.lax.broadcasted_iota(jnp.int32, (tokens, slots), 1) - length
    token = jax.lax.broadcasted_iota(jnp.int32, (tokens, slots), 0)
    new_slot = (slot == token).astype(config.dtype)
    is_new = (slot[:1] >= 0) & (slot[:1] < tokens)
    for name, kernel in zip(CACHED, ("key", "value"), strict=True):
        new = _product(config, x, part[kernel])
        new = jnp.where(jnp.abs(new) < jnp.inf, new, 0.0)  # as `KVCache.write` does
        new = _dot(config, new.astype(config.dtype), new_slot, (0, 0))
        values = part[name][...].astype(jnp.float32)
        part[name][...] = jnp.where(is_new, new, values).astype(part[name].dtype)
    return _product(config, x, part["query"])


def _attended(config: T5Config, part: _Part[_Ref], query: Array, bias: _Ref) -> Array:
    """Returns attention's term of the stream [T, D], from all heads' queries [T, H * head_dim]."""
    shape = _rows(config.num_heads), query.shape[1]
    number = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    first = jax.lax.broadcasted_iota(jnp.int32, shape, 0) * config.head_dim
    of_head = (number >= first) & (number < first + config.head_dim)
    query = _rounded(query, config.dtype)
    by_head = [jnp.where(of_head, query[i : i + 1], 0.0) for i in range(query.shape[0])]
    by_head = jnp.concatenate(by_head).astype(config.dtype)
    logits = _dot(config, by_head, part["keys"][...], (1, 0)) + bias[...]
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    weights = (weights / jnp.sum(weights, axis=-1, keepdims=True)).astype(config.dtype)
    mixed = _dot(config, weights, part["values"][...], (1, 1))
    mixed = [jnp.where(of_head, x, 0.0) for x in jnp.split(mixed, query.shape[0])]
    mixed = jnp.concatenate([jnp.sum(x, axis=0, keepdims=True) for x in mixed])
    return _product(config, mixed.astype(config.dtype), part["out"])


def _mlp(config: T5Config, part: _Part[_Ref], x: Array) -> Array:
    """Returns the MLP's term of the stream [T, D], from the normed stream x [T, D]."""
    names = sorted(name for name in part if name.startswith("wi"))
    gates = [
        ACTIVATIONS[activation](_rounded(_product(config, x, part[name]), config.dtype))
        for activation, name in zip(config.mlp_activations, names, strict=True)
    ]
    hidden = math.prod(gates[1:], start=gates[0]).astype(config.dtype)
    return _product(config, hidden, part["wo"])


def _product(config: T5Config, x: Array, kernel: _Ref) -> Array:
    """Multiplies [T, in] by a kernel [in, out], float32."""
    return _dot(config, x, kernel[...].astype(config.dtype), (1, 0))


def _dot(config: T5Config, x: Array, y: Array, axes: tuple[int, int]) -> Array:
    """Multiplies two matrices, over one axis of each."""
    return jax.lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=precision(config.dtype),
        preferred_element_type=jnp.float32,
    )


def _rounded(x: Array, dtype: str) -> Array:
    return x.astype(dtype).astype(jnp.float32)
