"""Decides about a draft as a whole: exact, and keeps more than token-by-token verification."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, draft_distribution, token_probs


@dataclasses.dataclass(frozen=True)
class Block(Verifier):
    """Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2). Exact.

    `SpeculativeSampling` caps the ratio p / q at each token. Block verification carries the excess
    over to later tokens. With i tokens kept, and L drafted:

      P_0 = 1,  P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i))     that i tokens or more are kept
      S_i = sum_x max(0, P_i p_{i+1}(x) - q_{i+1}(x))
      accept_i   = S_i / (S_i + 1 - P_i) for i < L,  P_L for the last
      residual_n = norm(max(0, P_n p_{n+1} - q_{n+1}))

    The kept tokens end with the *last* i that passes. No exact verifier keeps more tokens in
    expectation over drafts, but it may keep fewer of one particular draft.
    """

    exact: ClassVar[bool] = True
    several_paths: ClassVar[bool] = True
    rule: ClassVar[str] = "last"

    def accept(self, draft: Draft, scores: Scores) -> Array:
        reach = self._reach(draft, scores)
        excess = jnp.sum(self._excess(draft, scores, reach[:-1]), axis=-1)  # S_0, S_1, ...
        before, after = reach[1:], jnp.append(excess[1:], 0)  # of the test of i tokens: P_i, S_i
        total = after + 1 - before
        tested = jnp.where(total == 0, 1, after / total)  # p = q from here on: a later test passes
        last = jnp.arange(1, 1 + draft.tokens.shape[0]) >= draft.length
        return jnp.where(last, before, tested)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p, reach = scores.probs[n], self._reach(draft, scores)[n]
        q = draft_distribution(draft, n, p.shape[-1], p.dtype)
        more = jnp.maximum(reach * p - q, 0)
        total = jnp.sum(more)
        return jnp.where(total > 0, more / total, p)

    def _reach(self, draft: Draft, scores: Scores) -> Array:
        """Returns [K+1], P_0, P_1, ... along the draft: products, capped at 1 after each factor."""
        p, q = token_probs(draft, scores)
        credit = jnp.cumsum(jnp.where(q > 0, jnp.log(p) - jnp.log(q), -jnp.inf))
        spent = jax.lax.cummax(jnp.maximum(credit, 0))
        return jnp.append(jnp.ones([], p.dtype), jnp.exp(credit - spent))

    def _excess(self, draft: Draft, scores: Scores, reach: Array) -> Array:
        """Returns [K, V], max(0, P_i p_{i+1} - q_{i+1}) for each i < K."""
        p = scores.probs[:-1]
        rows = jnp.arange(len(p))
        q = jax.vmap(lambda i: draft_distribution(draft, i, p.shape[-1], p.dtype))(rows)
        return jnp.maximum(reach[:, None] * p - q, 0)
