"""NOT EXACT: accepts at a chosen rate, to time a pair of models without trained weights."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, Probability
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier


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
