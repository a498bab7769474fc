"""Verifiers that give up exactness for speed or for another distribution.

They exist to replicate the papers that proposed them, and no run uses one by default. Each one's
docstring says that it is lossy, and so do certificates and benchmarks.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.common.values import (
    Checked,
    NonNegativeInt,
    PositiveInt,
    PositiveShare,
    Probability,
    check_is,
    one_of,
)
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import (
    ByArgmax,
    Gap,
    Verifier,
    draft_distribution,
    excess,
    gaps,
    ratio,
    token_probs,
)


@dataclasses.dataclass(frozen=True)
class Lenient(Checked, Verifier):
    """NOT EXACT. The lenience of Leviathan et al. 2022, appendix A.5.

    With sampling, a token is kept with probability min(1, p / (l q)). After a rejected token comes
    a draw from norm(max(0, p - q)). If a token was drafted, x is emitted with probability

      min(q(x), p(x) / l) + (1 - sum min(q, p / l)) norm(max(0, p - q))(x),

    at most p(x) / l. The paper does not say what follows a rejection. max(0, p - l q) keeps the
    bound too, but is farther from p.

    At temperature 0, a token is kept if its softmax is at least l times the highest one; otherwise
    the likeliest token is taken. (The paper prints the reversed comparison, with which l = 1 would
    keep everything.)

    Args:
      lenience: l, above 0 and at most 1. With 1 the verifier is exact.
    """

    lenience: PositiveShare

    def accept(self, draft: Draft, scores: Scores) -> Array:
        if scores.greedy:
            near = gaps(draft, scores) <= -math.log(self.lenience)
            return near.astype(scores.probs.dtype)
        p, q = token_probs(draft, scores)
        return ratio(p, self.lenience * q)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        if scores.greedy:
            return p
        return excess(p, draft_distribution(draft, n, p.shape[-1], p.dtype))


@dataclasses.dataclass(frozen=True)
class TopBeta(Checked, ByArgmax):
    """NOT EXACT. Spec-Verification (Xia et al. 2023, arXiv 2203.16487, section 3.2).

    A token is kept if it is among the `beta` likeliest ones, and the likeliest one is at most `tau`
    nats above it. The likeliest token comes after the kept ones. Except for ties, beta = 1 is
    `GreedyMatch`. The paper's code has 5 and 3.0.

    Args:
      beta: a token is kept only if fewer than `beta` others are likelier.
      tau: the largest gap to the likeliest token's logit, in nats.
    """

    beta: PositiveInt = 3
    tau: Gap = 1.0

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.beta, draft, scores) & (gaps(draft, scores) <= self.tau)


@dataclasses.dataclass(frozen=True)
class TopK(Checked, ByArgmax):
    """NOT EXACT. The top-k selection of Stern et al. 2018 (arXiv 1811.03115, section 5.1).

    Args:
      k: a token is kept if fewer than k others are likelier.
    """

    k: PositiveInt

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.k, draft, scores)


def in_top(count: int, draft: Draft, scores: Scores) -> Array:
    """Returns [K] bool, whether fewer than `count` tokens are likelier than the draft's."""
    rows = jnp.arange(draft.tokens.shape[0])
    drafted = scores.logits[rows, draft.tokens]
    return jnp.sum(scores.logits[:-1] > drafted[:, None], axis=-1) < count


@dataclasses.dataclass(frozen=True)
class Typical(Checked, Verifier):
    """NOT EXACT. Typical acceptance (Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3.1).

    A token is kept if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy of p in nats.
    The less sure the target is, the more tokens are kept. After a rejected token comes a draw from
    p. If a token was drafted, and A is the set of tokens that are kept, x is emitted with
    probability

      q(x) [x in A] + (1 - q(A)) p(x).

    Args:
      epsilon: the threshold of p(x) at low entropy.
      delta: the factor of exp(-H(p)).
    """

    epsilon: Probability = 0.09
    delta: Probability = 0.3

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, _ = token_probs(draft, scores)
        entropy = jnp.sum(entr(scores.probs[:-1]), axis=-1)
        enough = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
        return (p > enough).astype(p.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]


@dataclasses.dataclass(frozen=True)
class BigLittle(Checked, Verifier):
    """NOT EXACT. The two thresholds of the big little decoder (Kim et al. 2023, 2302.07863).

    Sections 3.3 and 3.4 call them fallback and rollback. At temperature 0, p and q are the softmax
    of target and drafter (`Draft.beliefs`). The target's likeliest token replaces a token that is
    not kept. A drafter that copies gives its tokens probability 1. The paper drafts until the
    fallback. Here the schedule sets the draft length, and tokens after the fallback are wasted.

    With sampling, which the paper does not consider, the replacement is drawn from p. With A the
    set of tokens that are kept, x is emitted with probability

      q(x) [x in A] + (1 - q(A)) p(x).

    Args:
      fallback: the smallest q(x) that a token may have, from 0 to 1. From the first token below it
        on, the target decides. 0 disables it.
      rollback: the largest -log p(x), in nats, of a token that is kept.
    """

    fallback: Probability
    rollback: Gap
    reads_beliefs: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        rows = jnp.arange(draft.tokens.shape[0])
        p = jax.nn.softmax(scores.logits[:-1]) if scores.greedy else scores.probs[:-1]
        keeps = -jnp.log(p[rows, draft.tokens]) <= self.rollback
        believed = draft.beliefs if scores.greedy else draft.probs
        if believed is not None:
            keeps &= believed[rows, draft.tokens] >= self.fallback
        return keeps.astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]


@dataclasses.dataclass(frozen=True)
class Distance(Checked, ByArgmax):
    """NOT EXACT. The distance-based selection of Stern et al. 2018 (arXiv 1811.03115, section 5.2).

    A token is kept if its id differs from that of the likeliest token by at most `epsilon`. This
    makes sense if neighbouring ids have similar meanings: intensities of pixels (2 in the paper),
    not words.

    Args:
      epsilon: the largest difference of ids.
      ordered: the first and the last id of the ordered range; other ids must be equal. None orders
        all ids, including stop ids.
    """

    epsilon: NonNegativeInt
    ordered: tuple[int, int] | None = None
    exact: ClassVar[bool] = False

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        best = jnp.argmax(scores.logits, axis=-1)[:-1]
        near = jnp.abs(draft.tokens - best) <= self.epsilon
        if self.ordered is None:
            return near
        first, last = self.ordered
        both = jnp.stack([draft.tokens, best])
        within = jnp.all((both >= first) & (both <= last), axis=0)
        return (draft.tokens == best) | near & within


@dataclasses.dataclass(frozen=True)
class MinimumBlock(Checked, Verifier):
    """NOT EXACT. The minimum block size of Stern et al. 2018 (arXiv 1811.03115, section 5.3).

    Each call keeps at least `least` draft tokens, if there are that many. In the paper this lost
    much quality for little time.

    Args:
      verifier: decides about the other tokens, one by one.
      least: the number of tokens that are always kept.
    """

    verifier: Verifier
    least: PositiveInt

    def __post_init__(self):
        super().__post_init__()
        check_is(
            "MinimumBlock.verifier", self.verifier, Verifier, "a verifier, such as GreedyMatch()"
        )
        if self.verifier.rule != "first" or self.verifier.shared_noise:
            raise ValueError(
                f"MinimumBlock.verifier is {self.verifier}, which does not decide token by token; "
                "give another, such as SpeculativeSampling()"
            )

    @property
    def greedy_only(self) -> bool:
        return self.verifier.greedy_only

    @property
    def reads_beliefs(self) -> bool:
        return self.verifier.reads_beliefs

    def accept(self, draft: Draft, scores: Scores) -> Array:
        probs = self.verifier.accept(draft, scores)
        return jnp.where(jnp.arange(probs.shape[0]) < self.least, 1, probs)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return self.verifier.residual(draft, scores, n)


class MixtureLaw(Verifier):
    """A verifier with its own distribution pi, computed from the target's p and the drafter's q.

    If a token was drafted, the output has exactly the distribution pi: this is speculative sampling
    with pi instead of p. After a whole draft, and without one, q is unknown and the token comes
    from p. At temperature 0, p and q are softmax distributions (q is `Draft.beliefs`), and the
    likeliest token of pi is taken. A drafter that copies gives its tokens probability 1.
    """

    reads_beliefs: ClassVar[bool] = True

    @abc.abstractmethod
    def law(self, p: Array, q: Array) -> Array:
        """Returns the distribution pi [V], from p [V] and q [V]."""

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
    """NOT the target's distribution. The mean of target and drafter (Wang et al. 2020, 2012.01988).

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
    """NOT the target's distribution. Speculative cascades (Narasimhan et al. 2025, 2405.19261).

    The drafter's tokens are kept unless the deferral rule defers to the target. The rules 'chow',
    'difference' and 'optimal' take pi = p if max q is below

      1 - a,   max p - a,   or max p - a TV(p, q)

    respectively; otherwise pi = q. The rule 'token' keeps the drafter's token if it is in A, the
    set of tokens with p(x) >= (1 - a) max p:

      pi(x) = q(x) [x in A] + q(not A) p(x).

    Args:
      deferral: 'token', 'chow', 'difference' or 'optimal'.
      alpha: a, from 0 to 1. A larger value defers less often.
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


@dataclasses.dataclass(frozen=True)
class SyntheticAcceptance(Checked, Verifier):
    """NOT EXACT. Keeps each draft token with probability alpha, independent of drafter and target.

    Drafting and target calls are real, so the time of each step is real; only acceptance is
    simulated. The token after the kept ones is the target's own choice. The output is meaningless:
    it is to be timed, not read. The places where such texts end are meaningless too. Decode with
    `stop_ids=()`, so that every text has max_length tokens and lengths can be compared.

    Args:
      alpha: the probability, from 0 to 1, that a token is kept if those before it were.
    """

    alpha: Probability

    def __repr__(self) -> str:
        return f"SyntheticAcceptance(alpha={self.alpha}: NOT EXACT, the output means nothing)"

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return jnp.full(draft.tokens.shape, self.alpha, scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]
