"""Distances of a drafter's distribution from its target's, from their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specdec.types import Array

NOTHING = -1e4  # log q of ids that a drafter's head lacks; finite, so that 0 times it is 0


def forward_kl(p: Array, q: Array, real: Array) -> Array:
    """Returns KL(p || q), for a drafter that covers the target (Hinton et al. 2015, 1503.02531).

    The sum is over the ids that the drafter can say. Over all ids it would be infinite, with the
    same gradient.
    """
    return _mean_under(p, jnp.where(q > NOTHING, p - q, 0))


def reverse_kl(p: Array, q: Array, real: Array) -> Array:
    """Returns KL(q || p): the drafter says only what the target may say."""
    return _mean_under(q, q - p)


def jensen_shannon(p: Array, q: Array, real: Array) -> Array:
    """Returns half the sum of the KL of both to their mean; at most log 2."""
    mean = jnp.logaddexp(p, q) - math.log(2)
    return (_mean_under(p, p - mean) + _mean_under(q, q - mean)) / 2


def total_variation(p: Array, q: Array, real: Array) -> Array:
    """Returns 1 - alpha. The gradient nearly vanishes if p and q have little in common."""
    return 1 - jnp.exp(_log_alpha(p, q))


def total_variation_plus(p: Array, q: Array, real: Array) -> Array:
    """Returns TVD++ (Goel et al. 2024, 2403.00858): the reward 1[p > q], standardised.

    Mean and deviation of the reward are q's, over the batch. Expectations over q are full sums, not
    draws. The mean therefore has no effect, and the gradient is that of `total_variation` divided
    by the deviation. The value is not a distance.
    """
    reward = (p > q).astype(q.dtype)
    weights = jnp.where(real[..., None], jnp.exp(q), 0) / jnp.maximum(real.sum(), 1)
    mean = jnp.sum(weights * reward)
    deviation = jnp.sqrt(jnp.sum(weights * jnp.square(reward - mean)))
    advantage = (reward - mean) / jnp.maximum(deviation, 1e-6)
    return -jnp.sum(jax.lax.stop_gradient(jnp.exp(q) * advantage) * q, axis=-1)


def log_acceptance(p: Array, q: Array, real: Array) -> Array:
    """Returns -log alpha, with the gradient of `total_variation` divided by alpha.

    It does not vanish at the start of training (Samarin et al. 2026, 2602.23881).
    """
    return -_log_alpha(p, q)


def adaptive(p: Array, q: Array, real: Array) -> Array:
    """Returns KL for small alpha and TV for large alpha: lambda KL(p || q) + (1 - lambda) TV.

    lambda = exp(-3 alpha) is not differentiated (2602.23881).
    """
    alpha = jnp.exp(_log_alpha(p, q))
    share = jax.lax.stop_gradient(jnp.exp(-3 * alpha))
    return share * forward_kl(p, q, real) + (1 - share) * (1 - alpha)


def greedy(p: Array, q: Array, real: Array) -> Array:
    """Returns the cross-entropy of the target's likeliest token; 0 if the drafter cannot say it."""
    best = jax.nn.one_hot(p.argmax(axis=-1), p.shape[-1], dtype=bool)
    return -jnp.where(best & (q > NOTHING), q, 0).sum(axis=-1)


def _log_alpha(p: Array, q: Array) -> Array:
    return jax.nn.logsumexp(jnp.minimum(p, q), axis=-1)


def _mean_under(p: Array, values: Array) -> Array:
    return jnp.sum(jnp.exp(p) * values, axis=-1)


# Each gives [B, T] of log-probabilities [B, T, V], of the target and of the drafter, and of which
# tokens [B, T] are there. The drafter's are NOTHING where its head has no such id.
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
