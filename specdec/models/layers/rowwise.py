"""Sums over a token's numbers whose bits do not depend on the other tokens of a call.

Eight-bit tokens amplify rounding: if a last bit of a sum differs, a token may be rounded to another
level. XLA's CPU backend adds float32 numbers in an order that depends on the number of tokens. Its
matrix products of two rows or more add each row in the same order. So sums are computed here as
products with ones, and a single row gets a second one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specdec.types import Array

ROWS = 32  # of one product: without AVX-512, XLA's CPU backend adds more than 64 in another order
ONES = 8  # columns, because XLA would turn a product with one column into a sum
NEGLIGIBLE = -100.0  # e^-100 is below the smallest normal float32 number


def at_least_two(x: Array) -> Array:
    """Returns rows [N, K], with a row of zeros in addition if N is one."""
    return jnp.pad(x, ((0, 1), (0, 0))) if x.shape[0] == 1 else x


def sums(x: Array) -> Array:
    """Returns the sums [..., 1] of float32 numbers [..., K].

    Only on a CPU are the bits independent of the other rows.
    """

    def by_product(x: Array) -> Array:
        flat = at_least_two(x.reshape(-1, x.shape[-1]))
        if len(flat) > ROWS:
            flat = jnp.pad(flat, ((0, -len(flat) % ROWS), (0, 0)))
            flat = flat.reshape(-1, ROWS, x.shape[-1])
        ones = jnp.ones([*flat.shape[:-2], x.shape[-1], ONES], x.dtype)
        columns = jnp.matmul(flat, ones, precision="highest").reshape(-1, ONES)[:, :1]
        return columns[: x[..., 0].size].reshape(*x.shape[:-1], 1)

    def by_sum(x: Array) -> Array:
        return jnp.sum(x, axis=-1, keepdims=True)

    return jax.lax.platform_dependent(x, cpu=by_product, default=by_sum)


def softmax(logits: Array) -> Array:
    """Returns the softmax over the last axis of float32 logits."""
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    # The selection keeps XLA's CPU backend from a second implementation of exp for larger arrays.
    weights = jnp.exp(jnp.where(below < NEGLIGIBLE, -jnp.inf, below))
    return weights / sums(weights)
