"""NOT EXACT: keeps tokens that the drafter is sure of and the target tolerates."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, Probability
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Gap, Verifier


@dataclasses.dataclass(frozen=True)
class BigLittle(Checked, Verifier):
    """NOT EXACT. The two thresholds of the big little decoder (Kim et al. 2023, BiLD, arXiv
    2302.07863).

    Sections 3.3 and 3.4 call them fallback and rollback. At temperature 0, p and q are the softmax
    of target and drafter (`Draft.beliefs`). The target's likeliest token replaces a token that is
    not kept. A drafter that copies is certain of its tokens. The paper drafts until the fallback.
    Here the schedule sets the draft length, and tokens after the fallback are wasted.

    With sampling, which the paper does not consider, the replacement is drawn from p. With A the
    set of tokens that are kept, x is emitted with probability

      q(x) [x in A] + (1 - q(A)) p(x).

    Args:
      fallback: the smallest q(x) that a token may have, from 0 to 1. At the first token below it,
        the target takes over. 0 disables it.
      rollback: the largest -log p(x), in nats, that the target tolerates; otherwise the token is
        rejected.
    """

    fallback: Probability
    rollback: Gap
    reads_beliefs: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        rows = jnp.arange(draft.tokens.shape[0])
        p = jax.nn.softmax(scores.logits[:-1]) if scores.greedy else scores.probs[:-1]
        kept = -jnp.log(p[rows, draft.tokens]) <= self.rollback
        believed = draft.beliefs if scores.greedy else draft.probs
        if believed is not None:
            kept &= believed[rows, draft.tokens] >= self.fallback
        return kept.astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]
