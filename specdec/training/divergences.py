"""Distances of a drafter's distribution from its target's, from their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specdec.types import Array

NOTHING = -1e4  # log q of ids that a drafter's head lacks; finite, so that 0 times it is 0


def forward_kl(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] KL(p || q) for log-probabilities of target and drafter (Hinton et al. 2015).

    The sum leaves out ids that the drafter's head lacks, for which it would be infinite with the
    same gradient (1503.02531). The drafter learns to cover all tokens of the target.
    """
    return _mean_under(p, jnp.where(q > NOTHING, p - q, 0))


def reverse_kl(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] KL(q || p): the drafter learns to avoid tokens that are unlikely in p."""
    return _mean_under(q, q - p)


def jensen_shannon(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T], the mean of KL(p || m) and KL(q || m) with m = (p + q) / 2; at most log 2."""
    mean = jnp.logaddexp(p, q) - math.log(2)
    return (_mean_under(p, p - mean) + _mean_under(q, q - mean)) / 2


def total_variation(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] 1 - alpha. Its gradient nearly vanishes if p and q have little in common."""
    return 1 - jnp.exp(_log_alpha(p, q))


def total_variation_plus(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] TVD++ (Goel et al. 2024, 2403.00858), with the standardised reward 1[p > q].

    The reward's mean and deviation are expectations over q and the batch, computed as full sums.
    The mean therefore has no effect, and the gradient is that of `total_variation` divided by the
    deviation. The value is not a distance.
    """
    reward = (p > q).astype(q.dtype)
    weights = jnp.where(real[..., None], jnp.exp(q), 0) / jnp.maximum(real.sum(), 1)
    mean = jnp.sum(weights * reward)
    deviation = jnp.sqrt(jnp.sum(weights * jnp.square(reward - mean)))
    advantage = (reward - mean) / jnp.maximum(deviation, 1e-6)
    return -jnp.sum(jax.lax.stop_gradient(jnp.exp(q) * advantage) * q, axis=-1)


def log_acceptance(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] -log alpha, with the gradient of `total_variation` divided by alpha.

    This gradient does not vanish at the start of training (Samarin et al. 2026, 2602.23881).
    """
    return -_log_alpha(p, q)


def adaptive(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T] lambda KL(p || q) + (1 - lambda) TV: KL for small alpha, TV for large alpha.

    lambda = exp(-3 alpha) is not differentiated (2602.23881).
    """
    alpha = jnp.exp(_log_alpha(p, q))
    share = jax.lax.stop_gradient(jnp.exp(-3 * alpha))
    return share * forward_kl(p, q, real) + (1 - share) * (1 - alpha)


def greedy(p: Array, q: Array, real: Array) -> Array:
    """Returns [B, T], -log q of the target's likeliest token; 0 if the drafter's head lacks it."""
    best = jax.nn.one_hot(p.argmax(axis=-1), p.shape[-1], dtype=bool)
    return -jnp.where(best & (q > NOTHING), q, 0).sum(axis=-1)


def _log_alpha(p: Array, q: Array) -> Array:
    return jax.nn.logsumexp(jnp.minimum(p, q), axis=-1)


def _mean_under(p: Array, values: Array) -> Array:
    return jnp.sum(jnp.exp(p) * values, axis=-1)


# Each returns [B, T] from log-probabilities [B, T, V] of target and drafter, and from which tokens
# [B, T] are real. The drafter's are NOTHING for ids that its head lacks.
DIVERGENCES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
    "total_variation_plus": total_variation_plus,
    "log_acceptance": log_acceptance,
    "adaptive": adaptive,
    "greedy": greedy,
}
