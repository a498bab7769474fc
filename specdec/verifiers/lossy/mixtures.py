"""NOT the target's distribution: verifiers that are exact for a mixture of target and drafter."""

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
    """A verifier with its own distribution pi, made of the target's p and the drafter's q.

    If a token was drafted, the output has exactly the distribution pi: this is speculative sampling
    with pi instead of p. After a whole draft, and without one, q is unknown and the token comes
    from p. At temperature 0, p and q are the softmax of both (`Draft.beliefs`), and the likeliest
    token of pi is taken. A drafter that copies is certain of its tokens.
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
        """Returns pi and q, both [V], of draft token i."""
        p = jax.nn.softmax(scores.logits[i]) if scores.greedy else scores.probs[i]
        if scores.greedy and draft.beliefs is not None:
            q = draft.beliefs[i]
        else:
            q = draft_distribution(draft, i, p.shape[-1], p.dtype)
        return self.law(p, q), q


@dataclasses.dataclass(frozen=True)
class Ensemble(Checked, MixtureLaw):
    """NOT the target's distribution. The mean of target and drafter (Wang et al. 2020, arXiv
    2012.01988).

    The paper, "Wisdom of Committees", combines the outputs of several models.

    Args:
      weight: w, the target's weight, from 0 to 1.
      logits: whether pi = norm(p^w q^(1-w)), the mean of the logits, instead of w p + (1 - w) q. A
        token that either model excludes is then excluded. If no token is left, pi is p.
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
    """NOT the target's distribution. Speculative cascades (Narasimhan et al. 2025, arXiv
    2405.19261).

    The drafter's tokens stand unless the deferral rule asks the target. The rules 'chow',
    'difference' and 'optimal' take pi = p if max q is below

      1 - a,   max p - a,   or max p - a TV(p, q)

    respectively; otherwise pi = q. The rule 'token' keeps the drafter's token if the target finds
    it good enough. With A the tokens of p(x) >= (1 - a) max p,

      pi(x) = q(x) [x in A] + q(not A) p(x).

    Args:
      deferral: one of these rules.
      alpha: a, from 0 to 1. A larger value asks the target less often.
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
