"""Tokens from a distribution and a key."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from specdec.types import Array


def draw(key: Array, probs: Array) -> Array:
    """One token from [V] probabilities, which need not be normalised; the key serves only once.

    By inversion, first of a block of some sqrt(V) tokens and then in it, each with a number of its
    own. That costs V additions, where `draw_shared` computes V random numbers and 3 V logarithms,
    and each step's rounding is that of a short sum.
    """
    size = probs.shape[-1]
    width = math.isqrt(size - 1) + 1
    blocks = jnp.pad(probs, (0, -size % width)).reshape(-1, width)
    for_block, for_token = jax.random.uniform(key, (2,), probs.dtype)
    block = _invert(for_block, jnp.sum(blocks, axis=-1))
    return (block * width + _invert(for_token, blocks[block])).astype(jnp.int32)


def _invert(uniform: Array, weights: Array) -> Array:
    """[] the first index whose running sum exceeds this part of the whole."""
    sums = jnp.cumsum(weights)
    # Sums over a tree may grow by rounding where a weight is zero, which must never be drawn.
    beyond = (sums > uniform * sums[-1]) & (weights > 0)
    return jnp.where(jnp.any(beyond), jnp.argmax(beyond), jnp.argmax(weights))


def gumbel(key: Array, size: int) -> Array:
    """[size] float32: the noise with which `draw_shared` turns a distribution into a token."""
    return jax.random.gumbel(key, (size,), jnp.float32)


def draw_shared(key: Array, probs: Array) -> Array:
    """One token from [V] probabilities, which need not be normalised: argmax(log p + gumbel).

    Everybody who draws with this key draws the same token from the same distribution, and mostly
    from a similar one.
    """
    return jnp.argmax(jnp.log(probs) + gumbel(key, probs.shape[-1]), axis=-1).astype(jnp.int32)
