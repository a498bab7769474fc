"""The pieces that families share; logical axes have T5X's names.

Matrix products run in the model's dtype; RMS statistics are float32 whatever the weights are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint

from specdec.types import Array

MASKED = -1e10  # added to the attention logits of what must not be seen; finite also in bfloat16


def fan_in(distribution: Literal["truncated_normal", "normal"]) -> Callable:
    """Initial values with a variance of one over the number of inputs."""
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution)


def parameter(
    module: nn.Module, name: str, init: Callable, axes: tuple[str, ...], shape: tuple[int, ...]
) -> Array:
    """A float32 parameter whose axes have logical names, for sharding."""
    given = module.get_variable("params", name)
    if getattr(given, "shape", None) == shape:
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
    """[..., in] -> [..., features], without bias. `transposed`: the kernel is [features, in]."""

    features: int
    axes: tuple[str, str]  # of a kernel [in, features]
    dtype: str
    init: Callable = fan_in("truncated_normal")
    transposed: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1], self.features)
        kernel = kernel_of(self, self.init, self.axes, shape, self.transposed)
        return matmul(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            transposed=self.transposed,
            precision=precision(self.dtype),
        )


def kernel_of(
    module: nn.Module,
    init: Callable,
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    transposed: bool,
) -> Array:
    """[in, out], or with axes and shape reversed [out, in]."""
    if transposed:  # the model draws its values [in, out]: `init` is only asked for a shape
        axes, shape = axes[::-1], shape[::-1]
    return parameter(module, "kernel", init, axes, shape)


def matmul(x: Array, kernel: Array, *, transposed: bool = False, **options) -> Array:
    """[..., in] @ [in, out] as a product of two matrices; transposed: the kernel is [out, in].

    It is the same product either way, but with three axes XLA's CPU backend takes 2.5 times as long
    for the gradient of a vocabulary projection.
    """
    product = jnp.inner if transposed else jnp.matmul  # `inner` contracts both last axes
    flat = product(x.reshape(-1, x.shape[-1]), kernel, **options)
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def float32_matmul(x: Array, kernel: Array, *, transposed: bool = False) -> Array:
    """x @ kernel with a float32 result: bfloat16 operands are multiplied exactly."""
    exact = jax.lax.Precision.HIGHEST
    return matmul(
        x, kernel, transposed=transposed, precision=exact, preferred_element_type=jnp.float32
    )


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
