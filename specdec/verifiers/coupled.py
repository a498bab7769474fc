"""Accepts tokens that draft and target draw with the same noise, so that a seed fixes the text."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.sampling import draw_shared
from specdec.types import Array, Draft, Noise, Scores, Verdict
from specdec.verifiers.decide import Verifier, draft_distribution, match, token_probs


@dataclasses.dataclass(frozen=True)
class Coupled(Verifier):
    """Draws draft and target with the same Gumbel noise, and keeps a token if both drew it. Exact.

    The text is a function of the target and the seed alone. It is the same for every drafter, draft
    length and batch, and without a drafter. The price is a lower acceptance rate. Shared noise
    agrees with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), at least (1 - TV) / (1 + TV).
    `SpeculativeSampling` keeps 1 - TV (Daliri, Musco and Suresh 2024, arXiv 2408.07978).

    `accept` and `residual` are the conditional distributions given the draft token. The noise of a
    token is an exponential time E. Draws from q and p take the tokens of least E / q and E / p. Let
    those be t and r t. Then E_k > t max(q_k, r p_k) for all other tokens k. These rates sum to t
    G(r), with G(r) = sum_k max(q_k, r p_k). Hence

      P(x = i, y = i) = q_i / G(q_i / p_i)
      P(x = i, y = j) = q_i p_j max(0, H(q_i / p_i) - H(q_j / p_j)),   H' = 1 / G^2.
    """

    exact: ClassVar[bool] = True
    shared_noise: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, q = token_probs(draft, scores)
        rows = jnp.arange(draft.tokens.shape[0])
        whole_q = jax.vmap(
            lambda i: draft_distribution(draft, i, scores.probs.shape[-1], scores.probs.dtype)
        )(rows)
        others = jnp.maximum(q[:, None] * scores.probs[:-1], whole_q * p[:, None])
        return jnp.where(p > 0, p / jnp.sum(others, axis=-1), 0)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        h = _arrival_integral(p, draft_distribution(draft, n, p.shape[-1], p.dtype))
        weights = p * jnp.maximum(h[draft.tokens[n]] - h, 0)
        total = jnp.sum(weights)
        return jnp.where(total > 0, weights / total, p)

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        return match(draft, jax.vmap(draw_shared)(keys.correct, scores.probs))


def _arrival_integral(p: Array, q: Array) -> Array:
    """Returns [V], H(q_i / p_i) of `Coupled`, up to a constant.

    Between neighbouring ratios a < b, G is linear, and the integral of 1 / G^2 is (b - a) / (G(a)
    G(b)). For b = inf it is 1 / (slope G(a)).
    """
    ratio = jnp.where(p > 0, q / jnp.where(p > 0, p, 1), jnp.inf)
    order = jnp.argsort(ratio)
    ratio = ratio[order]
    finite = jnp.isfinite(ratio)
    ratio = jnp.where(finite, ratio, 0)
    slope = jnp.cumsum(p[order])  # of G just beyond each ratio
    g = jnp.sum(q) - jnp.cumsum(q[order]) + slope * ratio
    up_to_finite = (ratio[1:] - ratio[:-1]) / (g[:-1] * g[1:])
    up_to_infinity = jnp.where(finite[:-1], 1 / (slope * g)[:-1], 0)
    gaps = jnp.where(finite[1:], up_to_finite, up_to_infinity)
    h = jnp.concatenate([jnp.zeros_like(gaps, shape=(1,)), jnp.cumsum(gaps)])
    return jnp.zeros_like(h).at[order].set(h)
