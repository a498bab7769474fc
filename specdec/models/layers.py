"""The pieces that families share; logical axes have T5X's names.

Matrix products run in the model's dtype; RMS statistics are float32 whatever the weights are.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint

from specdec.models.int8 import SCALE
from specdec.models.products import STORED, Kernels, product
from specdec.types import Array

MASKED = -1e10  # added to the attention logits of what must not be seen; finite also in bfloat16


def fan_in(distribution: Literal["truncated_normal", "normal"]) -> Callable:
    """Initial values with a variance of one over the number of inputs."""
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution)


def parameter(
    module: nn.Module, name: str, init: Callable, axes: tuple[str, ...], shape: tuple[int, ...]
) -> Array:
    """A parameter whose axes have logical names, for sharding; float32, if `init` says no other."""
    given = module.get_variable("params", name)
    if isinstance(given, jax.Array) and given.shape == shape:
        return given  # `param` would trace `init` for the shape: a quarter of the tracing
    return cast(Array, module.param(name, nn.with_logical_partitioning(init, axes), shape))


def constrain(x: Array, *axes: str | None, tpu_order: tuple[int, ...] | None = None) -> Array:
    """`x` divided over the mesh by the rules for its logical axes, where there is a mesh.

    tpu_order: its axes, major to minor, in the memory of a TPU; elsewhere it has no effect.
    """
    if tpu_order is not None:
        ordered = functools.partial(_ordered, axes=axes, layout=Layout(tpu_order))
        x = jax.lax.platform_dependent(x, tpu=ordered, default=lambda x: x)
    return cast(Array, nn.with_logical_constraint(x, axes))


def _ordered(x: Array, axes: tuple[str | None, ...], layout: Layout) -> Array:
    if not nn.get_logical_axis_rules() or jax.sharding.get_abstract_mesh().empty:
        return with_layout_constraint(x, layout)
    # Of each device's part: XLA would gather the array to lay out the whole.
    part = nn.logical_to_mesh_axes(axes)
    return jax.shard_map(
        lambda x: with_layout_constraint(x, layout), in_specs=part, out_specs=part, check_vma=False
    )(x)


def precision(dtype) -> jax.lax.Precision | None:
    """Accelerators multiply float32 in fewer bits by default; a float32 model means float32."""
    return jax.lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else None


class Dense(nn.Module):
    """[..., in] -> [..., features], without bias."""

    features: int
    axes: tuple[str, str]  # of a kernel [in, features]
    dtype: str
    init: Callable = fan_in("truncated_normal")
    kernels: Kernels = STORED

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1], self.features)
        kernel = kernel_of(self, self.init, self.axes, shape, self.kernels)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        y = matmul(x, kernel, self.kernels, precision=precision(self.dtype))
        if not self.kernels.int8:
            return y
        scale = parameter(self, SCALE, nn.initializers.ones, self.axes[1:], shape[1:])
        return (y * jnp.expand_dims(scale, range(y.ndim - 1))).astype(self.dtype)


def kernel_of(
    module: nn.Module,
    init: Callable,
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    kernels: Kernels,
) -> Array:
    """[in, out], or with axes and shape reversed [out, in]."""
    if kernels.int8:
        init = functools.partial(nn.initializers.zeros, dtype=jnp.int8)
    if kernels.transposed:  # the model draws its values [in, out]: `init` is only asked for a shape
        axes, shape = axes[::-1], shape[::-1]
    return parameter(module, "kernel", init, axes, shape)


def matmul(x: Array, kernel: Array, kernels: Kernels = STORED, **options) -> Array:
    """[..., in] @ [in, out] as a product of two matrices; the kernel is kept as `kernels` says.

    It is the same product either way, but with three axes XLA's CPU backend takes 2.5 times as long
    for the gradient of a vocabulary projection.
    """
    flat = x.reshape(-1, x.shape[-1])
    flat = product(flat, kernel, kernels.order(flat.shape[0]), **options)
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def float32_matmul(x: Array, kernel: Array, kernels: Kernels = STORED) -> Array:
    """`matmul` with a float32 result: bfloat16 operands are multiplied exactly."""
    exact = jax.lax.Precision.HIGHEST
    return matmul(x, kernel, kernels, precision=exact, preferred_element_type=jnp.float32)


class RMSNorm(nn.Module):
    """x / rms(x) * scale; no mean, no bias (T5's layer norm)."""

    dtype: str
    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = parameter(self, "scale", nn.initializers.ones, ("embed",), (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype)[None, None]


TABLE = Kernels(transposed=True)  # [V, D]


class Embedding(nn.Module):
    """The token table, shared by encoder and decoder, and by the logits of tied models."""

    vocab_size: int
    emb_dim: int
    dtype: str
    axis: str = "embed"  # the name of the second one

    def setup(self):
        init = nn.initializers.normal(1.0)
        shape = (self.vocab_size, self.emb_dim)
        self.embedding = parameter(self, "embedding", init, ("vocab", self.axis), shape)

    def __call__(self, tokens: Array) -> Array:
        """[...] int32 -> [..., D]."""
        x = jnp.take(self.embedding, tokens, axis=0).astype(self.dtype)
        return constrain(x, "batch", "length", "embed")

    def logits(self, x: Array, kernels: Kernels = TABLE) -> Array:
        """[..., D] -> [..., V] float32, scaled by 1/sqrt(D) as T5 v1.0 does."""
        logits = float32_matmul(x, self.embedding, kernels) / math.sqrt(self.emb_dim)
        return constrain(logits, "batch", "length", None)


class Logits(nn.Module):
    """[..., D] -> [..., V] float32. The kernel is used in the dtype it is stored in.

    scaled: by 1/sqrt(D), as a tied model's are.
    ids: [K] those that the kernel [D, K] is of, ascending; the others get -inf. None: all V.
    """

    vocab_size: int
    scaled: bool = False
    kernels: Kernels = STORED
    ids: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = fan_in("truncated_normal")
        shape = (x.shape[-1], self.vocab_size if self.ids is None else len(self.ids))
        kernels = dataclasses.replace(self.kernels, int8=False)
        kernel = kernel_of(self, init, ("embed", "vocab"), shape, kernels)
        logits = float32_matmul(x, kernel, self.kernels)
        logits = logits / math.sqrt(x.shape[-1]) if self.scaled else logits
        if self.ids is not None:
            none = jnp.full((*logits.shape[:-1], self.vocab_size), -jnp.inf, logits.dtype)
            at = none.at[..., jnp.asarray(self.ids)]
            logits = at.set(logits, indices_are_sorted=True, unique_indices=True)
        return constrain(logits, "batch", "length", None)


class MLP(nn.Module):
    """One projection per activation, their product, and back: wi (v1.0) or wi_0 * wi_1 (v1.1)."""

    mlp_dim: int
    emb_dim: int
    activations: tuple[str, ...]
    dtype: str
    kernels: Kernels = STORED

    @nn.compact
    def __call__(self, x: Array) -> Array:
        dense = functools.partial(Dense, dtype=self.dtype, kernels=self.kernels)
        gates = []
        for i, activation in enumerate(self.activations):
            name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            gate = dense(self.mlp_dim, ("embed", "mlp"), name=name)(x)
            gates.append(ACTIVATIONS[activation](gate))
        hidden = constrain(math.prod(gates[1:], start=gates[0]), "batch", "length", "mlp")
        return dense(self.emb_dim, ("mlp", "embed"), name="wo")(hidden)


ACTIVATIONS = {"relu": nn.relu, "gelu": nn.gelu, "silu": nn.silu, "linear": lambda x: x}
DType: TypeAlias = Literal["float32", "bfloat16"]


def attend(
    query: Array, keys: Array, values: Array, bias: Array, equation: str = "bthd,bhcd->bhtc"
) -> Array:
    """[B, T, H, head_dim] queries over cached [B, H, C, head_dim] keys and values.

    bias: [B, 1 or H, T, C] float32, added to the attention logits.
    equation: of the queries and the keys, if these lie otherwise.
    """
    weights = attention_weights(equation, query, keys, bias)
    mixed = jnp.einsum("bhtc,bhcd->bhtd", weights, values, precision=precision(query.dtype))
    return mixed.swapaxes(1, 2)


def attention_weights(equation: str, query: Array, keys: Array, bias: Array) -> Array:
    """[B, H, T, C] in the queries' dtype; logits and softmax are float32."""
    exact, wide = precision(query.dtype), jnp.float32
    logits = jnp.einsum(equation, query, keys, precision=exact, preferred_element_type=wide)
    return jax.nn.softmax(logits + bias, axis=-1).astype(query.dtype)
