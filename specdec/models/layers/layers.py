"""Layers that families share. Logical axes have T5X's names.

Matrix products run in the model's dtype. RMS statistics are always float32.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint

from specdec.models.layers import rowwise
from specdec.models.layers.int8 import SCALE, rounded
from specdec.models.layers.products import STORED_KERNELS, Kernels, precision, product
from specdec.types import Array

_REMATERIALISED = contextvars.ContextVar("rematerialised", default=False)


@contextlib.contextmanager
def rematerialised(on: bool = True) -> Iterator[None]:
    """Makes models that are traced in this context compute each layer again for its gradient.

    Only a layer's inputs are then kept until its gradient is computed (Chen et al. 2016,
    1604.06174).
    """
    before = _REMATERIALISED.set(on)
    try:
        yield
    finally:
        _REMATERIALISED.reset(before)


def layer_class(layer: type[nn.Module], static: tuple[int, ...] = ()) -> type[nn.Module]:
    """Returns `layer`, or in the context `rematerialised` the layer wrapped by `nn.remat`; `static`
    are the indices of call arguments that are no arrays, where 0 is the module."""
    return nn.remat(layer, static_argnums=static) if _REMATERIALISED.get() else layer


def fan_in(distribution: Literal["truncated_normal", "normal"]) -> Callable:
    """Returns an initializer with variance 1 / (number of inputs)."""
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution)


def parameter(
    module: nn.Module, name: str, init: Callable, axes: tuple[str, ...], shape: tuple[int, ...]
) -> Array:
    """Returns a parameter with named axes, for sharding; float32 unless `init` differs."""
    value = module.get_variable("params", name)
    if isinstance(value, jax.Array) and value.shape == shape:
        return value  # `param` would trace `init` for the shape: a quarter of the tracing
    return cast(Array, module.param(name, nn.with_logical_partitioning(init, axes), shape))


def constrain(x: Array, *axes: str | None, tpu_order: tuple[int, ...] | None = None) -> Array:
    """Divides an array over the mesh by the rules for its logical axes, if there is a mesh.

    Args:
      x: the array.
      *axes: the logical name of each axis.
      tpu_order: its axes, major to minor, in the memory of a TPU; no effect elsewhere.
    """
    if tpu_order is not None:
        ordered = functools.partial(_ordered, axes=axes, layout=Layout(tpu_order))
        x = jax.lax.platform_dependent(x, tpu=ordered, default=lambda x: x)
    return cast(Array, nn.with_logical_constraint(x, axes))


def _ordered(x: Array, axes: tuple[str | None, ...], layout: Layout) -> Array:
    if not nn.get_logical_axis_rules() or jax.sharding.get_abstract_mesh().empty:
        return with_layout_constraint(x, layout)
    # Each device lays out its part: XLA would gather the array to lay out the whole.
    part = nn.logical_to_mesh_axes(axes)
    ordered = jax.shard_map(
        lambda x: with_layout_constraint(x, layout), in_specs=part, out_specs=part
    )
    return ordered(x)


class Dense(nn.Module):
    """Maps [..., in] to [..., features]."""

    features: int
    axes: tuple[str, str]  # of a kernel [in, features]
    dtype: str
    init: Callable = fan_in("truncated_normal")
    kernels: Kernels = STORED_KERNELS
    bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1], self.features)
        kernel = kernel_of(self, self.init, self.axes, shape, self.kernels)
        if self.kernels.int8_tokens:
            y = rounded_matmul(x, kernel, self.kernels)
        else:
            x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
            y = matmul(x, kernel, self.kernels, precision=precision(self.dtype))
        if self.kernels.int8:
            y = rescaled(self, y, self.axes[1:]).astype(self.dtype)
        if self.bias:
            bias = parameter(self, "bias", nn.initializers.zeros, self.axes[1:], shape[1:])
            y += jnp.expand_dims(bias.astype(self.dtype), range(y.ndim - 1))
        return y


def kernel_of(
    module: nn.Module,
    init: Callable,
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    kernels: Kernels,
) -> Array:
    """Returns a kernel [in, out], or [out, in] if kernels are transposed."""
    if kernels.int8 and not kernels.widened:
        kind = jnp.uint8 if kernels.unsigned else jnp.int8
        init = functools.partial(nn.initializers.zeros, dtype=kind)
    if kernels.transposed:  # the model draws its values [in, out]: `init` is only asked for a shape
        axes, shape = axes[::-1], shape[::-1]
    return parameter(module, "kernel", init, axes, shape)


def rescaled(module: nn.Module, y: Array, axes: tuple[str, ...]) -> Array:
    """Multiplies a product [..., out] with an int8 kernel by the scales of the outputs."""
    scale = parameter(module, SCALE, nn.initializers.ones, axes, y.shape[-1:])
    return y * jnp.expand_dims(scale, range(y.ndim - 1))


def matmul(x: Array, kernel: Array, kernels: Kernels = STORED_KERNELS, **options) -> Array:
    """Multiplies [..., in] by a kernel [in, out] as a product of two matrices.

    `kernels` tells how the kernel is stored. With three axes instead of two, XLA's CPU backend
    takes 2.5 times as long for the gradient of a vocabulary projection.
    """
    flat = x.reshape(-1, x.shape[-1])
    tokens = flat.shape[0]
    if kernels.int8_tokens:  # XLA's CPU backend has a fast path for int8 from two tokens on
        flat = rowwise.at_least_two(flat)
    flat = product(flat, kernel, kernels.order(tokens), **options)[:tokens]
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def float32_matmul(x: Array, kernel: Array, kernels: Kernels = STORED_KERNELS) -> Array:
    """Returns `matmul` in float32, in which products of bfloat16 numbers are exact."""
    exact = jax.lax.Precision.HIGHEST
    return matmul(x, kernel, kernels, precision=exact, preferred_element_type=jnp.float32)


def rounded_matmul(x: Array, kernel: Array, kernels: Kernels) -> Array:
    """Multiplies tokens [..., in], rounded to eight bits, by the int8 numbers of a kernel.

    Sums of int8 products are exact. Widened kernels give float sums, rounded above 2^24. XLA rounds
    tokens once if several products have the same tokens.

    Returns:
      [..., out] float32, without the kernel's scales.
    """
    levels, scale = rounded(x)
    if kernels.widened:
        y = float32_matmul(levels.astype(kernel.dtype), kernel, kernels)
    else:
        y = matmul(levels.astype(jnp.int8), kernel, kernels, preferred_element_type=jnp.int32)
    return y.astype(jnp.float32) * scale


def mean_of(x: Array, by_row: bool) -> Array:
    """Returns the means [..., 1] of float32 numbers [..., K]; for `by_row` see `RMSNorm`."""
    if by_row:
        return rowwise.sums(x) * (1 / x.shape[-1])
    return jnp.mean(x, axis=-1, keepdims=True)


class RMSNorm(nn.Module):
    """Computes x / rms(x) * scale, without mean and bias (T5's layer norm).

    Args:
      dtype: of the result.
      epsilon: added to the mean of squares.
      by_row: whether a token's bits must not depend on the other tokens of a call.
      axis: the logical name of the last axis.
    """

    dtype: str
    epsilon: float
    by_row: bool = False
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = parameter(self, "scale", nn.initializers.ones, (self.axis,), (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(mean_of(jnp.square(x), self.by_row) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype)[None, None]


class LayerNorm(nn.Module):
    """Computes (x - mean) / deviation * scale + bias in float32 (Ba et al. 2016, 1607.06450).

    Its arguments are those of `RMSNorm`.
    """

    dtype: str
    epsilon: float
    by_row: bool = False
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1],)
        scale = parameter(self, "scale", nn.initializers.ones, (self.axis,), shape)
        bias = parameter(self, "bias", nn.initializers.zeros, (self.axis,), shape)
        x = x.astype(jnp.float32)
        x -= mean_of(x, self.by_row)
        x *= jax.lax.rsqrt(mean_of(jnp.square(x), self.by_row) + self.epsilon)
        scale, bias = (y.astype(jnp.float32)[None, None] for y in (scale, bias))
        return (x * scale + bias).astype(self.dtype)


TABLE = Kernels(transposed=True)  # [V, D]


class Embedding(nn.Module):
    """A table of vectors for tokens or positions; one object may serve encoder, decoder and logits.

    Args:
      vocab_size: V, the number of rows.
      emb_dim: D, the width of a row.
      dtype: the dtype of the rows that are returned.
      axis: the logical name of the second axis.
      rows: the logical name of the first axis.
      spread: the standard deviation of random values.
    """

    vocab_size: int
    emb_dim: int
    dtype: str
    axis: str = "embed"
    rows: str = "vocab"
    spread: float = 1.0

    def setup(self):
        init = nn.initializers.normal(self.spread)
        shape = (self.vocab_size, self.emb_dim)
        self.embedding = parameter(self, "embedding", init, (self.rows, self.axis), shape)

    def __call__(self, tokens: Array) -> Array:
        """Maps [...] int32 to [..., D]."""
        x = jnp.take(self.embedding, tokens, axis=0).astype(self.dtype)
        return constrain(x, "batch", "length", "embed")

    def logits(self, x: Array, kernels: Kernels = TABLE, scaled: bool = True) -> Array:
        """Maps [..., D] to [..., V] float32, by default scaled by 1/sqrt(D) as in T5 v1.0."""
        logits = float32_matmul(x, self.embedding, kernels)
        logits = logits / math.sqrt(self.emb_dim) if scaled else logits
        return constrain(logits, "batch", "length", "logits")


class Logits(nn.Module):
    """Maps [..., D] to [..., V] float32. The kernel is used in the dtype it is stored in.

    A kernel in eight bits is multiplied by tokens in eight bits.

    Args:
      vocab_size: V.
      scaled: whether logits are scaled by 1/sqrt(D), like a tied model's.
      kernels: how the kernel is stored.
      ids: [K] ascending, the ids that the kernel [D, K] has; the others get -inf. None for all V.
    """

    vocab_size: int
    scaled: bool = False
    kernels: Kernels = STORED_KERNELS
    ids: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = fan_in("truncated_normal")
        shape = (x.shape[-1], self.vocab_size if self.ids is None else len(self.ids))
        kernel = kernel_of(self, init, ("embed", "vocab"), shape, self.kernels)
        if self.kernels.int8:
            logits = rounded_matmul(x, kernel, self.kernels)
            logits = rescaled(self, logits, ("vocab",))
        else:
            logits = float32_matmul(x, kernel, self.kernels)
        logits = logits / math.sqrt(x.shape[-1]) if self.scaled else logits
        if self.ids is not None:
            none = jnp.full((*logits.shape[:-1], self.vocab_size), -jnp.inf, logits.dtype)
            at = none.at[..., jnp.asarray(self.ids)]
            logits = at.set(logits, indices_are_sorted=True, unique_indices=True)
        return constrain(logits, "batch", "length", "logits")


class MLP(nn.Module):
    """Projects to hidden units by wi, or as in T5 v1.1 by a product of wi_0 and wi_1, and back."""

    mlp_dim: int
    emb_dim: int
    activations: tuple[str, ...]
    dtype: str
    kernels: Kernels = STORED_KERNELS
    bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shared = {"dtype": self.dtype, "kernels": self.kernels, "bias": self.bias}
        dense = functools.partial(Dense, **shared)
        count, axes = len(self.activations), ("embed", "mlp")
        if self.kernels.joined:
            products = jnp.split(dense(count * self.mlp_dim, axes, name="wi")(x), count, axis=-1)
        else:
            names = ["wi"] if count == 1 else [f"wi_{i}" for i in range(count)]
            products = (dense(self.mlp_dim, axes, name=name)(x) for name in names)
        pairs = zip(self.activations, products, strict=True)
        gates = [ACTIVATIONS[activation](product) for activation, product in pairs]
        hidden = constrain(math.prod(gates[1:], start=gates[0]), "batch", "length", "mlp")
        return dense(self.emb_dim, ("mlp", "embed"), name="wo")(hidden)


ACTIVATIONS = {
    "relu": nn.relu,
    "gelu": nn.gelu,  # the tanh approximation, as in T5X
    "exact_gelu": lambda x: 0.5 * x * (1 + jax.lax.erf(x * np.asarray(math.sqrt(0.5), x.dtype))),
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "silu": nn.silu,
    "linear": lambda x: x,
}
DType: TypeAlias = Literal["float32", "bfloat16"]
