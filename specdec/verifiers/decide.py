"""The decision about one row, which all verifiers share, the pieces they are made of, and the two
simplest verifiers."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Rule, is_number
from specdec.sampling import draw, is_distribution
from specdec.types import Array, Draft, Noise, Scores, Verdict


def _is_gap(x: Any) -> bool:
    infinite = isinstance(x, float) and x == math.inf  # which no gap is above
    return infinite or is_number(x) and x >= 0


Gap = Annotated[float, Rule(_is_gap, "a gap in nats, 0 or more, or inf")]


class Verifier(abc.ABC):
    """Decides which tokens of a draft to keep: a frozen dataclass with two functions of one row,
    which hold no randomness and keep the dtype of their input, so that the law of the output can be
    computed exactly, in float64 (`testing.output_law`).

    exact: the output has the target's law. A verifier that does not say so is not exact, and every
      report says that.
    shared_noise: the draft is drawn with the very noise the target draws with (`Coupled`); valid
      only with accept-iff-equal.
    rule: "last" where the accepted length is the last i whose test passes, not the one before the
      first that fails.
    greedy_only: the verifier means nothing at a temperature; a `Plan` refuses it there.
    reads_beliefs: greedy drafters are to say what they hold likely (`Draft.beliefs`).
    """

    exact: ClassVar[bool] = False
    shared_noise: ClassVar[bool] = False
    rule: ClassVar[str] = "first"
    greedy_only: ClassVar[bool] = False
    reads_beliefs: ClassVar[bool] = False

    @abc.abstractmethod
    def accept(self, draft: Draft, scores: Scores) -> Array:
        """Returns [K], the probability of accepting draft token i, given that those before it
        were."""

    @abc.abstractmethod
    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        """Returns [V], the distribution of the next token after n accepted ones, n < length."""

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        """Decides about one row by `accept` and `residual`: token i is kept iff u_i < accept_i,
        strictly, because u can be 0. A verifier may decide by itself in another way."""
        if draft.tokens.shape[0] == 0:  # a call without a draft
            return Verdict(jnp.int32(0), draw(keys.correct[0], scores.probs[0]))
        uniforms = jax.vmap(jax.random.uniform)(keys.accept)
        passed = (uniforms < self.accept(draft, scores)) & _within(draft)
        n = _last(passed) if self.rule == "last" else leading(passed)
        return Verdict(n, draw(keys.correct[n], next_distribution(self, draft, scores, n)))

    @property
    def by_law(self) -> bool:
        """Whether a verdict is drawn from the law of `accept` and `residual`."""
        return type(self).verdict is Verifier.verdict


def verdict(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
    """Returns the verifier's verdict about one row, without tokens that processors exclude."""
    found = verifier.verdict(keys, draft, scores)
    if scores.processed and not verifier.exact:
        return _without_excluded(verifier, found, keys, draft, scores)
    return found


def _without_excluded(
    verifier: Verifier, found: Verdict, keys: Noise, draft: Draft, scores: Scores
) -> Verdict:
    """Returns the verdict of a verifier that is not exact, up to the first token that a processor
    excludes. In its place comes the target's own token.

    Where a kept token is excluded, that is a draw from p. Where the token after the kept ones would
    be excluded, each excluded token x of its law r gives its probability r(x) to p:

        law(y) = r(y) + r(excluded) p(y)    for y that is not excluded

    One draw from this law replaces a draw from r and, if that is excluded, a second one from p. Two
    draws would need two keys: from one key, the second depends on what the first has excluded.
    """
    rows = jnp.arange(draft.tokens.shape[0])
    possible = scores.logits[rows, draft.tokens] > -jnp.inf
    n = jnp.minimum(found.num_accepted, leading(possible))
    own, whole = scores.probs[n], n == found.num_accepted
    if not verifier.by_law or not len(rows):  # by itself, or from p, which excludes alike
        keeps = whole & (scores.logits[n, found.next_token] > -jnp.inf)
        return Verdict(n, jnp.where(keeps, found.next_token, draw(keys.correct[n], own)))
    law = jnp.where(whole, next_distribution(verifier, draft, scores, n), own)
    excluded = scores.logits[n] == -jnp.inf
    law = jnp.where(excluded, 0, law) + jnp.sum(jnp.where(excluded, law, 0)) * own
    return Verdict(n, draw(keys.correct[n], law))


def next_distribution(verifier: Verifier, draft: Draft, scores: Scores, n: Array) -> Array:
    """[V] the law of the token after n accepted ones: the target's own after a whole draft."""
    within = jnp.minimum(n, draft.tokens.shape[0] - 1)  # of the row that is not used, any index
    residual = verifier.residual(draft, scores, within)
    return jnp.where(n < draft.length, residual, scores.probs[n])


def draft_distribution(draft: Draft, i: Array, vocab_size: int, dtype) -> Array:
    """[V] what draft token i was drawn from."""
    if draft.probs is None:
        return jax.nn.one_hot(draft.tokens[i], vocab_size, dtype=dtype)
    return draft.probs[i]


def match(draft: Draft, best: Array, keeps: Array | None = None) -> Verdict:
    """The longest prefix of the draft that is kept, and what is best [K+1] behind it.

    keeps: [K] bool; None for what equals the best token.
    """
    keeps = draft.tokens == best[:-1] if keeps is None else keeps
    n = leading(keeps & _within(draft))
    return Verdict(n, best[n].astype(jnp.int32))


class ByArgmax(Verifier):
    """A verifier that looks at each token by itself, without a coin: it has `keeps`, and behind the
    kept tokens comes the target's likeliest one."""

    greedy_only: ClassVar[bool] = True

    @abc.abstractmethod
    def keeps(self, draft: Draft, scores: Scores) -> Array:
        """Returns which draft tokens are kept, [K] bool."""

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return self.keeps(draft, scores).astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        best = jnp.argmax(scores.logits[n], axis=-1)
        return jax.nn.one_hot(best, scores.logits.shape[-1], dtype=scores.probs.dtype)

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        return match(draft, jnp.argmax(scores.logits, axis=-1), self.keeps(draft, scores))


def gaps(draft: Draft, scores: Scores) -> Array:
    """[K] by how much the likeliest token's logit is above the draft token's, in nats."""
    rows = jnp.arange(draft.tokens.shape[0])
    own = scores.logits[rows, draft.tokens]
    return jnp.max(scores.logits[:-1], axis=-1) - own


def excess(p: Array, q: Array) -> Array:
    """[V] norm(max(0, p - q)): what p has more than q.

    It is p where there is none (p equals q but for rounding), or q is NaN and nothing of it passed.
    """
    more = jnp.maximum(p - q, 0)
    total = jnp.sum(more)
    return jnp.where(total > 0, more / total, p)


def ratio(p: Array, q: Array) -> Array:
    """min(1, p / q), 0 where q is 0 or not a number."""
    return jnp.minimum(jnp.where(q > 0, p / q, 0), 1)


def token_probs(draft: Draft, scores: Scores) -> tuple[Array, Array]:
    """[K] p_i(x_i) and [K] q_i(x_i)."""
    rows = jnp.arange(draft.tokens.shape[0])
    p = scores.probs[rows, draft.tokens]
    q = jnp.ones_like(p) if draft.probs is None else draft.probs[rows, draft.tokens]
    return p, q


def _within(draft: Draft) -> Array:
    return jnp.arange(draft.tokens.shape[0]) < draft.length


def leading(passed: Array) -> Array:
    """Counts the True before the first False, along the last axis."""
    width = passed.shape[-1]
    failed = jnp.where(
        passed, width, jax.lax.broadcasted_iota(jnp.int32, passed.shape, passed.ndim - 1)
    )
    return jnp.min(failed, axis=-1, initial=width)


def usable_tokens(draft: Draft) -> Array:
    """Returns which tokens of a draft were drawn from a distribution, bool of the tokens' shape.

    A token that was proposed with certainty always was. No verifier is exact for a draft that goes
    on beyond the first other token, so the loop ends it there, and so do enumerated laws.
    """
    usable = jnp.ones(draft.tokens.shape, bool)
    for probs in (draft.probs, draft.beliefs):
        if probs is not None:
            usable &= is_distribution(probs)
    return usable


def _last(passed: Array) -> Array:
    """One more than the index of the last True, 0 if there is none."""
    return jnp.max(jnp.where(passed, jnp.arange(1, passed.shape[0] + 1), 0), initial=0)


@dataclasses.dataclass(frozen=True)
class GreedyMatch(ByArgmax):
    """Keeps the longest prefix that the target would have chosen itself, then its next choice."""

    exact: ClassVar[bool] = True

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return draft.tokens == jnp.argmax(scores.logits, axis=-1)[:-1]


@dataclasses.dataclass(frozen=True)
class SpeculativeSampling(Verifier):
    """The rule of Leviathan et al. 2022, section 2.3 (and Chen et al. 2023). Exact.

    accept_i   = min(1, p_i(x_i) / q_i(x_i))
    residual_n = norm(max(0, p_{n+1} - q_{n+1}))
    """

    exact: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return ratio(*token_probs(draft, scores))

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        return excess(p, draft_distribution(draft, n, p.shape[-1], p.dtype))
