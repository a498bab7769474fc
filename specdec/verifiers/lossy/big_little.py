"""NOT EXACT: keep what the drafter is sure of and the target does not object to."""

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
    """NOT EXACT. Fallback and rollback of the big little decoder (Kim et al. 2023, BiLD, arXiv
    2302.07863, sections 3.3 and 3.4), with two thresholds.

    fallback: q(x) that a token must have, from 0 to 1; from the first one below it on, the target
      speaks. 0: never.
    rollback: nats of -log p(x) that the target tolerates; above, the token is taken back.

    Greedy, p and q are the softmax of both (`Draft.beliefs`), and the target's likeliest token
    takes the place of one that is not kept. A drafter that copies is certain of its tokens. The
    paper drafts until the fallback; here a call has as many drafts as the schedule says, and what
    lies behind the fallback was drafted in vain.

    Drawn, which the paper does not do, the target's token is a draw from p: with A the tokens that
    are kept, x is emitted with probability q(x) [x in A] + (1 - q(A)) p(x).
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
