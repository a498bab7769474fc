"""Kernels in eight bits, with one scale per output. A step reads half of bfloat16's bytes.

  kernel = int8 * scale        scale[out] = max over in of |kernel[:, out]| / 127

Only weights are rounded. A product multiplies by the int8 numbers, which bfloat16 represents
exactly, and its result by the scales. The result is another model than the checkpoint's, and
reports say so.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax.numpy as jnp

from specdec.types import Array

Weights: TypeAlias = Literal["stored", "int8"]
SCALE = "kernel_scale"  # next to "kernel" in a tree of parameters
LEVELS = 127  # of each sign; -128 is not used


def quantized(kernel: Array, *, inputs: int) -> dict[str, Array]:
    """Returns a kernel's int8 numbers, and the float32 scales of its outputs.

    Args:
      kernel: the kernel.
      inputs: the axis of the inputs.
    """
    kernel = kernel.astype(jnp.float32)
    scale = jnp.max(jnp.abs(kernel), axis=inputs) / LEVELS
    levels = jnp.round(kernel / jnp.expand_dims(jnp.where(scale > 0, scale, 1), inputs))
    return {"kernel": levels.astype(jnp.int8), SCALE: scale}


def dequantized(layer: dict[str, Any], *, inputs: int) -> Array:
    """Returns the float32 kernel that a quantized layer stands for."""
    return layer["kernel"].astype(jnp.float32) * jnp.expand_dims(layer[SCALE], inputs)
