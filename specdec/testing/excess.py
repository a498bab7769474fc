"""A test of whether tokens were drawn from given distributions, by the excess of what they did.

Each token is counted by functions f with values in [0, 1], such as membership of a group. Given the
text before it, f of a token has the mean and the variance that its distribution says. The sum of
f - mean over all tokens is a martingale, whose tail Freedman's inequality bounds.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from specdec.testing.law import FALSE_ALARM
from specdec.types import Array

EDGES = (1, 2, 5)  # between ranks: the likeliest token, the second, the third to fifth, others
RANKS = len(EDGES) + 1
RESIDUES = 4  # groups of ids too: a draft that is let through moves ids, and ranks less
LOWEST = 10.0  # nats; less likely tokens count as if they had this log-probability
COUNTS = RANKS + RESIDUES + 1  # with the log-probability, which a changed temperature moves most
DETECTED = 0.99  # the probability with which the stated deviations are seen
_DEVIATIONS = 2.33  # standard deviations that a normal variable exceeds with that probability


def excess(probs: Array, tokens: Array, *others: Array) -> tuple[Array, Array]:
    """Returns what tokens [B, N] did beyond their distributions [B, N, V], and its variance.

    They are f - mean and variance, [B, N, C] each: of `RANKS` groups by rank, `RESIDUES` groups by
    id, the log-probability, and equality with each of `others` [B, N], which were known before.
    """
    groups = [by_rank(probs, tokens), _by_residue(probs, tokens)]
    for other in others:
        mass = jnp.take_along_axis(probs, other[:, :, None], axis=2)
        groups.append(jnp.stack([mass, (tokens == other)[:, :, None]], axis=3))
    mass = jnp.concatenate([group[..., 0] for group in groups], axis=2)
    member = jnp.concatenate([group[..., 1] for group in groups], axis=2)
    mass = jnp.clip(mass, 0, 1)
    surprise = jnp.minimum(-jnp.log(probs), LOWEST) / LOWEST  # 1 where the probability is 0
    mean = jnp.sum(probs * surprise, axis=2)
    drawn = jnp.take_along_axis(surprise, tokens[:, :, None], axis=2)[:, :, 0]
    spread = jnp.sum(probs * (surprise - mean[:, :, None]) ** 2, axis=2)

    def with_surprise(counts: Array, value: Array) -> Array:
        at = RANKS + RESIDUES
        return jnp.concatenate([counts[..., :at], value[..., None], counts[..., at:]], axis=2)

    return with_surprise(member - mass, drawn - mean), with_surprise(mass * (1 - mass), spread)


def by_rank(probs: Array, tokens: Array) -> Array:
    """Returns each group's probability, and 1 for the group of the token, [B, N, RANKS, 2]."""
    drawn = jnp.take_along_axis(probs, tokens[:, :, None], axis=2)
    before = jnp.arange(probs.shape[-1])[None, None] < tokens[:, :, None]  # breaks ties
    rank = jnp.sum((probs > drawn) | (probs == drawn) & before, axis=2)
    group = jnp.sum(rank[:, :, None] >= jnp.array(EDGES)[None, None], axis=2)
    most = jax.lax.top_k(probs, min(EDGES[-1], probs.shape[-1]))[0]
    up_to = [jnp.sum(most[:, :, :edge], axis=2) for edge in EDGES]
    edges = jnp.stack([jnp.zeros_like(up_to[0]), *up_to, jnp.ones_like(up_to[0])], axis=2)
    return jnp.stack([jnp.diff(edges, axis=2), jax.nn.one_hot(group, RANKS)], axis=3)


def _by_residue(probs: Array, tokens: Array) -> Array:
    """Returns the same by the id's remainder."""
    missing = -probs.shape[2] % RESIDUES
    padded = jnp.pad(probs, ((0, 0), (0, 0), (0, missing)))
    mass = jnp.sum(padded.reshape(*tokens.shape, -1, RESIDUES), axis=2)
    return jnp.stack([mass, jax.nn.one_hot(tokens % RESIDUES, RESIDUES)], axis=3)


def tail(excess: np.ndarray, variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns an upper bound of the probability of such a sum in any of several tests.

    Freedman (1975), theorem 1.6, in both directions:

      P(|sum| >= x) <= 2 exp(-x^2 / (2 (variance + x / 3)))

    `excess` [...] are sums of `excess`, and `variance` [...] those of their variances.
    """
    spread = 2 * (variance + np.abs(excess) / 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(excess == 0, 0.0, excess**2 / spread)
    return np.minimum(1.0, 2 * tests * np.exp(-exponent))


def seen(variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns the mean excess that is detected with probability `DETECTED`.

    It is the sum whose `tail` is `FALSE_ALARM`, and 2.33 standard deviations.
    """
    limit = math.log(2 * tests / FALSE_ALARM)
    threshold = limit / 3 + np.sqrt(limit**2 / 9 + 2 * limit * np.asarray(variance))
    return threshold + _DEVIATIONS * np.sqrt(variance)
