"""Products in eight bits, with one scale per output of a kernel and one per token.

  kernel = int8 * scale        scale[out] = max over in of |kernel[:, out]| / 127
  x = int8 * scale             scale[token] = max over in of |x[token]| / 127

With the weights "int8", only kernels are rounded: a product multiplies by their int8 numbers, which
bfloat16 represents exactly, and its result by the scales. With "int8_tokens", the tokens of each
product are rounded as well, so that both operands have eight bits and the sums are int32. The
kernel of the logits is rounded then, too. Either is another model than the checkpoint's, and
reports say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from specdec.models.layers.products import SHIFT
from specdec.types import Array, PyTree

Rounding: TypeAlias = Literal["stored", "int8", "int8_tokens"]
SCALE = "kernel_scale"  # next to "kernel" in a tree of parameters
LEVELS = 127  # of each sign; -128 is not used
# Bits of a kernel's scale. Its product with a level is then a float32 number, so a kernel that is
# made float again and rounded again has the same levels and scales.
SCALE_BITS = 16


def quantized(kernel: Array, *, inputs: int) -> dict[str, Array]:
    """Returns a kernel's int8 levels and float32 scales per output; `inputs` is the input axis."""
    kernel = kernel.astype(jnp.float32)
    scale = jnp.max(jnp.abs(kernel), axis=inputs) / LEVELS
    scale = jax.lax.reduce_precision(scale, exponent_bits=8, mantissa_bits=SCALE_BITS)
    levels = jnp.round(kernel / jnp.expand_dims(jnp.where(scale > 0, scale, 1), inputs))
    return {"kernel": levels.astype(jnp.int8), SCALE: scale}


def rounded(x: Array) -> tuple[Array, Array]:
    """Rounds tokens x [..., in]; returns levels [..., in] and scales [..., 1], x = levels * scales.

    Levels are whole numbers from -127 to 127 in float32. A token's result depends on that token
    alone.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    levels = jnp.round(x * jnp.where(largest > 0, LEVELS / largest, 0))
    return levels, largest * (1 / LEVELS)


def signed(levels: Array) -> Array:
    """Maps uint8 levels back to int8, and returns int8 ones unchanged."""
    if levels.dtype != jnp.uint8:
        return levels
    return (levels.astype(jnp.int16) - SHIFT).astype(jnp.int8)


def dequantized(layer: Mapping[str, PyTree], *, inputs: int) -> Array:
    """Returns the float32 kernel of a layer from `quantized`; `inputs` is the input axis."""
    return signed(layer["kernel"]).astype(jnp.float32) * jnp.expand_dims(layer[SCALE], inputs)
