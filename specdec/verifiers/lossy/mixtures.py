"""NOT the target's law: verifiers that are exact for a law between target and drafter."""

from __future__ import annotations

import abc
import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, Probability, one_of
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, draft_distribution, excess, ratio


class MixtureLaw(Verifier):
    """A verifier with a law of its own, pi, made of the target's p and the drafter's q.

    Where something was drafted, the output has the law pi, exactly: it is speculative sampling with
    pi in place of p. Behind a whole draft, and where nothing was drafted, q is not known, and it
    has p. Greedy, p and q are the softmax of both (`Draft.beliefs`), and the likeliest token of pi
    is taken. A drafter that copies is certain of its tokens.
    """

    reads_beliefs: ClassVar[bool] = True

    @abc.abstractmethod
    def law(self, p: Array, q: Array) -> Array:
        """Returns pi, [V]."""

    def accept(self, draft: Draft, scores: Scores) -> Array:
        rows = jnp.arange(draft.tokens.shape[0])
        pi, q = jax.vmap(lambda i: self._both(draft, scores, i))(rows)
        if scores.greedy:
            return (jnp.argmax(pi, axis=-1) == draft.tokens).astype(pi.dtype)
        return ratio(pi[rows, draft.tokens], q[rows, draft.tokens])

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        pi, q = self._both(draft, scores, n)
        if scores.greedy:
            return jax.nn.one_hot(jnp.argmax(pi), pi.shape[-1], dtype=pi.dtype)
        return excess(pi, q)

    def _both(self, draft: Draft, scores: Scores, i: Array) -> tuple[Array, Array]:
        """[V] pi and q of draft token i."""
        p = jax.nn.softmax(scores.logits[i]) if scores.greedy else scores.probs[i]
        if scores.greedy and draft.beliefs is not None:
            q = draft.beliefs[i]
        else:
            q = draft_distribution(draft, i, p.shape[-1], p.dtype)
        return self.law(p, q), q


@dataclasses.dataclass(frozen=True)
class Ensemble(Checked, MixtureLaw):
    """NOT the target's law. A committee that combines outputs (Wang et al. 2020, "Wisdom of
    Committees", arXiv 2012.01988), with a vote of each model.

    weight: w, of the target, 0 to 1.
    logits: pi = norm(p^w q^(1-w)), the mean of the logits, in place of w p + (1 - w) q. A token
      that either model excludes is then excluded; where that leaves nothing, pi is p.
    """

    weight: Probability
    logits: bool = False

    def law(self, p: Array, q: Array) -> Array:
        if not self.logits:
            return self.weight * p + (1 - self.weight) * q
        both = jnp.where(p > 0, p, 1) ** self.weight * jnp.where(q > 0, q, 1) ** (1 - self.weight)
        both = jnp.where((p > 0) & (q > 0), both, 0)
        total = jnp.sum(both)
        return jnp.where(total > 0, both / jnp.where(total > 0, total, 1), p)


RULES = ("token", "chow", "difference", "optimal")


@dataclasses.dataclass(frozen=True)
class SpeculativeCascade(Checked, MixtureLaw):
    """NOT the target's law. Speculative cascades (Narasimhan et al. 2025, arXiv 2405.19261): the
    small model answers where it may, the big one elsewhere.

    deferral: when it asks the target. 'chow', 'difference' and 'optimal' do so, pi = p, if max q is
      below 1 - a, max p - a, or max p - a TV(p, q); else pi = q. 'token' takes the drafter's word
      where it is good enough for the target: with A the tokens of p(x) >= (1 - a) max p,
      pi(x) = q(x) [x in A] + q(not A) p(x).
    alpha: a, 0 to 1; more of it means less of the target.
    """

    deferral: Annotated[str, one_of(RULES)]
    alpha: Probability

    def law(self, p: Array, q: Array) -> Array:
        if self.deferral == "token":
            good = p >= (1 - self.alpha) * jnp.max(p)
            return jnp.where(good, q, 0) + jnp.sum(jnp.where(good, 0, q)) * p
        enough = {
            "chow": 1 - self.alpha,
            "difference": jnp.max(p) - self.alpha,
            "optimal": jnp.max(p) - self.alpha * jnp.sum(jnp.abs(p - q)) / 2,
        }
        return jnp.where(jnp.max(q) < enough[self.deferral], p, q)
