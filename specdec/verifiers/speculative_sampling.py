"""Accept with probability min(1, p / q), else draw from what p has more than q."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import draft_distribution, token_probs


@dataclasses.dataclass(frozen=True)
class SpeculativeSampling:
    """The rule of Leviathan et al. 2022, section 2.3 (and Chen et al. 2023). Exact.

    accept_i   = min(1, p_i(x_i) / q_i(x_i))
    residual_n = norm(max(0, p_{n+1} - q_{n+1}))
    """

    exact: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, q = token_probs(draft, scores)
        return jnp.minimum(jnp.where(q > 0, p / q, 0), 1)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        q = draft_distribution(draft, n, p.shape[-1], p.dtype)
        excess = jnp.maximum(p - q, 0)
        total = jnp.sum(excess)
        # No excess: p == q up to rounding. NaN: q is not a distribution, and nothing of it passed.
        return jnp.where(total > 0, excess / total, p)
