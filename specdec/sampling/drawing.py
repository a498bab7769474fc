"""Functions that draw a token from a distribution with a key."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from specdec.types import Array


def draw(key: Array, probs: Array) -> Array:
    """Draws one token from probabilities [V] by inversion.

    A block of about sqrt(V) tokens is drawn first, then a token in it, each with its own random
    number. That costs V additions, while `draw_shared` computes V random numbers and 3 V
    logarithms. Sums are short, so rounding errors are small.

    Args:
      key: the random key, which must be used only once.
      probs: [V], which need not be normalised.

    Returns:
      [] int32, the token.
    """
    size = probs.shape[-1]
    width = math.isqrt(size - 1) + 1
    blocks = jnp.pad(probs, (0, -size % width)).reshape(-1, width)
    for_block, for_token = jax.random.uniform(key, (2,), probs.dtype)
    block = _invert(for_block, jnp.sum(blocks, axis=-1))
    return (block * width + _invert(for_token, blocks[block])).astype(jnp.int32)


def _invert(uniform: Array, weights: Array) -> Array:
    """Returns the first index whose running sum exceeds the fraction `uniform` of the total."""
    sums = jnp.cumsum(weights)
    # Sums over a tree may grow by rounding where a weight is zero, which must never be drawn.
    beyond = (sums > uniform * sums[-1]) & (weights > 0)
    return jnp.where(jnp.any(beyond), jnp.argmax(beyond), jnp.argmax(weights))


def gumbel(key: Array, size: int) -> Array:
    """Returns [size] float32, the noise with which `draw_shared` turns a distribution into a token.

    Args:
      key: the random key.
      size: V.
    """
    return jax.random.gumbel(key, (size,), jnp.float32)


def draw_shared(key: Array, probs: Array) -> Array:
    """Draws one token from probabilities [V]: argmax(log p + gumbel).

    Two draws with the same key give the same token from the same distribution, and usually also
    from a similar one.

    Args:
      key: the random key.
      probs: [V], which need not be normalised.

    Returns:
      [] int32, the token.
    """
    return jnp.argmax(jnp.log(probs) + gumbel(key, probs.shape[-1]), axis=-1).astype(jnp.int32)
