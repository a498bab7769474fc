"""NOT EXACT: acceptance at a chosen rate, for the speed of a pair one has no weights of."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, Probability
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier


@dataclasses.dataclass(frozen=True)
class SyntheticAcceptance(Checked, Verifier):
    """NOT EXACT. Keeps each draft token with probability alpha, whatever drafter and target think.

    The loop, the drafting and the target's calls are the real ones, only the verdict is drawn: the
    time of each step is real, and how many tokens a step is worth is chosen. The token after the
    kept ones is the target's own choice. The output follows no model: it is to be timed, not read.

    Where such a text ends means nothing either. Decode with `stop_ids=()`: then every text has
    max_length tokens, and lengths can be compared.

    alpha: 0 to 1, for each token that those before it were kept.
    """

    alpha: Probability

    def __repr__(self) -> str:
        return f"SyntheticAcceptance(alpha={self.alpha}: NOT EXACT, the output means nothing)"

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return jnp.full(draft.tokens.shape, self.alpha, scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]
