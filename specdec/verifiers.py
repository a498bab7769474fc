"""Verifiers: which draft tokens to keep, and what comes after them.

A verifier is a frozen dataclass with two functions of one row (`types.Verifier`): `accept`, the
probability of keeping each draft token, and `residual`, the distribution of the token after the
kept ones. They hold no randomness and keep the dtype of their input, so that the law of the output
can be computed exactly, in float64 (`testing.output_law`).

Optional class attributes:
  shared_noise = True   the draft is drawn with the very noise the target draws with (`Coupled`);
                        valid only with accept-iff-equal.
  rule = 'last'         the accepted length is the last i whose test passes, not the one before the
                        first that fails.
  greedy_only = True    meaningless at a temperature; `decode` refuses it there.
and one optional method, `verdict(keys, draft, scores) -> Verdict`, for a verifier that decides by
itself.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.sampling import draw, draw_shared
from specdec.types import Array, Draft, Noise, Scores, Verdict


def verdict(verifier, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
    """Decides about one row. Accepts token i iff u_i < accept_i, strictly: u can be 0."""
    if hasattr(verifier, "verdict"):
        return verifier.verdict(keys, draft, scores)
    uniforms = jax.vmap(jax.random.uniform)(keys.accept)
    passed = (uniforms < verifier.accept(draft, scores)) & _within(draft)
    rule = getattr(verifier, "rule", "first")
    n = _last(passed) if rule == "last" else _leading(passed)
    return Verdict(n, draw(keys.correct[n], next_distribution(verifier, draft, scores, n)))


def next_distribution(verifier, draft: Draft, scores: Scores, n: Array) -> Array:
    """[V] the law of the token after n accepted ones: the target's own after a whole draft."""
    if draft.tokens.shape[0] == 0:
        return scores.probs[n]
    within = jnp.minimum(n, draft.tokens.shape[0] - 1)  # of the row that is not used, any index
    residual = verifier.residual(draft, scores, within)
    return jnp.where(n < draft.length, residual, scores.probs[n])


def draft_distribution(draft: Draft, i: Array, vocab_size: int, dtype) -> Array:
    """[V] what draft token i was drawn from."""
    if draft.probs is None:
        return jax.nn.one_hot(draft.tokens[i], vocab_size, dtype=dtype)
    return draft.probs[i]


@dataclasses.dataclass(frozen=True)
class SpeculativeSampling:
    """The rule of Leviathan et al. 2022, section 2.3 (and Chen et al. 2023). Exact.

    accept_i   = min(1, p_i(x_i) / q_i(x_i))
    residual_n = norm(max(0, p_{n+1} - q_{n+1}))
    """

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, q = _token_probs(draft, scores)
        return jnp.minimum(jnp.where(q > 0, p / q, 0), 1)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        q = draft_distribution(draft, n, p.shape[-1], p.dtype)
        excess = jnp.maximum(p - q, 0)
        total = jnp.sum(excess)
        # No excess: p == q up to rounding. NaN: q is not a distribution, and nothing of it passed.
        return jnp.where(total > 0, excess / total, p)


@dataclasses.dataclass(frozen=True)
class GreedyMatch:
    """Keeps the longest prefix that the target would have chosen itself, then its next choice."""

    greedy_only: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        best = jnp.argmax(scores.logits, axis=-1)
        return (draft.tokens == best[:-1]).astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        best = jnp.argmax(scores.logits[n], axis=-1)
        return jax.nn.one_hot(best, scores.logits.shape[-1], dtype=scores.probs.dtype)

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        return _match(draft, jnp.argmax(scores.logits, axis=-1))


@dataclasses.dataclass(frozen=True)
class Coupled:
    """Draft and target draw with the same Gumbel noise; a token is kept iff they drew the same.

    The text is then a function of the target and the seed alone: the same for every drafter, draft
    length and batch, and the same as without a drafter. The price is acceptance: shared noise
    agrees with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), at least (1 - TV) / (1 + TV),
    where `SpeculativeSampling` keeps 1 - TV (Daliri, Musco and Suresh 2024, arXiv 2408.07978).

    `accept` and `residual` are the conditional laws given the draft token. With each token's noise
    an exponential arrival time, q's winner arrives at t and p's at s = r t; given the ratio r, no
    other token may arrive earlier, which has rate t G(r), G(r) = sum_k max(q_k, r p_k). Hence

      P(x = i, y = i) = q_i / G(q_i / p_i)
      P(x = i, y = j) = q_i p_j max(0, H(q_i / p_i) - H(q_j / p_j)),   H' = 1 / G^2.
    """

    shared_noise: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, q = _token_probs(draft, scores)
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
        return _match(draft, jax.vmap(draw_shared)(keys.correct, scores.probs))


def _arrival_integral(p: Array, q: Array) -> Array:
    """[V] H(q_i / p_i) of `Coupled`, up to a constant.

    Between neighbouring ratios a < b, G is linear and the integral of 1 / G^2 is
    (b - a) / (G(a) G(b)); up to b = inf it is 1 / (slope G(a)).
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


def _match(draft: Draft, best: Array) -> Verdict:
    """The longest prefix of the draft that equals the target's tokens [K+1], and the next one."""
    n = _leading((draft.tokens == best[:-1]) & _within(draft))
    return Verdict(n, best[n].astype(jnp.int32))


def _token_probs(draft: Draft, scores: Scores) -> tuple[Array, Array]:
    """[K] p_i(x_i) and [K] q_i(x_i)."""
    rows = jnp.arange(draft.tokens.shape[0])
    p = scores.probs[rows, draft.tokens]
    q = jnp.ones_like(p) if draft.probs is None else draft.probs[rows, draft.tokens]
    return p, q


def _within(draft: Draft) -> Array:
    return jnp.arange(draft.tokens.shape[0]) < draft.length


def _leading(passed: Array) -> Array:
    """The number of True before the first False."""
    return jnp.sum(jnp.cumprod(passed.astype(jnp.int32)))


def _last(passed: Array) -> Array:
    """One more than the index of the last True, 0 if there is none."""
    return jnp.max(jnp.where(passed, jnp.arange(1, passed.shape[0] + 1), 0), initial=0)
