"""Turns logits into the distribution that is sampled from, for baseline, draft and verification.

Speculative decoding is exact with respect to a *standardised* distribution (Leviathan et al. 2022,
section 2.2). All changes to logits happen here, so that no code path can apply another order or
another filter.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, PositiveShare, number
from specdec.types import Array, History, SamplingRule

_NEAR_ZERO = 1e-4  # a temperature for which rounding of logits matters; training has none below
Temperature = Annotated[
    float, number(lambda x: x > 0, "a positive number, or use Greedy() for temperature 0")
]


@dataclasses.dataclass(frozen=True)
class Greedy(SamplingRule):
    """Takes the most likely token; among equals the one with the smallest id."""

    greedy: ClassVar[bool] = True

    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """Returns one-hot distributions [..., V], in the logits' dtype."""
        best = jnp.argmax(logits, axis=-1)
        return jax.nn.one_hot(best, logits.shape[-1], dtype=logits.dtype)


@dataclasses.dataclass(frozen=True)
class Sampling(Checked, SamplingRule):
    """Applies temperature, then top-k, then top-p.

    Args:
      temperature: positive; the logits are divided by it.
      top_k: keep the k most likely tokens, and those that tie with the k-th; None for all.
      top_p: keep the smallest set of most likely tokens with at least this mass, and those that tie
        with its last; None for all.

    Example:

    >>> import jax.numpy as jnp
    >>> probs = Sampling(top_k=2).probabilities(jnp.log(jnp.array([0.5, 0.3, 0.2])))
    >>> [round(float(p), 3) for p in probs]
    [0.625, 0.375, 0.0]
    """

    temperature: Temperature = 1.0
    top_k: PositiveInt | None = None
    top_p: PositiveShare | None = None

    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """Returns probabilities [..., V] that sum to 1, in the logits' dtype.

        They do not depend on position or history.
        """
        logits = tempered(logits, self.temperature)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kth = jax.lax.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits < kth, -jnp.inf, logits)
        probs = jax.nn.softmax(logits, axis=-1)
        if self.top_p is not None and self.top_p < 1:
            probs = jnp.where(probs < _nucleus_threshold(probs, self.top_p), 0, probs)
            probs = probs / jnp.sum(probs, axis=-1, keepdims=True)
        return probs


def tempered(logits: Array, temperature: float) -> Array:
    """Returns logits / temperature, shifted so that the highest of each row is 0.

    The shift comes first. Otherwise the highest quotient could be infinite. It could also differ
    between two uses, if a compiler fuses a multiply-add in one of them. For temperatures near 0 the
    shifted logits could differ too, so the highest is set to 0. Temperatures beyond the dtype's
    range become the nearest that divide without overflow.

    Args:
      logits: [..., V] floats.
      temperature: positive.
    """
    least = float(jnp.finfo(logits.dtype).tiny)
    above = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    if temperature < _NEAR_ZERO:
        best = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=bool)
        above = jnp.where(best, 0, jnp.minimum(above, 0))
    return above / min(max(temperature, least), 1 / least)


def is_distribution(probs: Array) -> Array:
    """Returns whether each row of `probs` is a probability distribution.

    A row is one if no entry is NaN, infinite or negative, and its sum is 1 up to rounding. The
    bound is 1,024 units of float32's (or float64's) relative precision. For vocabularies of 500 to
    262,144 tokens, sums of valid rows were off by at most 2 units.

    Args:
      probs: [..., V] floats.

    Returns:
      [...] bool.
    """
    unit = min(jnp.finfo(probs.dtype).eps, jnp.finfo(jnp.float32).eps)
    off = jnp.abs(jnp.sum(probs, axis=-1, dtype=jnp.promote_types(probs.dtype, jnp.float32)) - 1)
    return (off <= 1024 * unit) & (jnp.min(probs, axis=-1) >= 0)


def fit_vocabulary(logits: Array, size: int) -> Array:
    """Returns logits [..., size]. Missing ids get probability 0; surplus ids are cut off.

    Args:
      logits: [..., any width].
      size: V.
    """
    logits = logits[..., :size]
    missing = [(0, 0)] * (logits.ndim - 1) + [(0, size - logits.shape[-1])]
    return jnp.pad(logits, missing, constant_values=-jnp.inf)


def _nucleus_threshold(probs: Array, mass: float) -> Array:
    """Returns the largest t for which tokens with probability >= t have at least `mass`, [..., 1].

    It bisects over bit patterns, which are ordered like the non-negative numbers they stand for.
    The result is exact after as many halvings as there are bits. Sorting V numbers takes several
    times as long on accelerators and on XLA's CPU backend.
    """
    bits = jnp.finfo(probs.dtype).bits
    integer = jnp.dtype(f"int{bits}")

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        threshold = jax.lax.bitcast_convert_type(middle, probs.dtype)
        enough = jnp.sum(jnp.where(probs >= threshold, probs, 0), -1, keepdims=True) >= mass
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # All tokens have enough mass (whatever the rounding), those with more than 1 have none.
    low = jnp.zeros((*probs.shape[:-1], 1), integer)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.asarray(1.5, probs.dtype), integer))
    low, _ = jax.lax.fori_loop(0, bits, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, probs.dtype)
