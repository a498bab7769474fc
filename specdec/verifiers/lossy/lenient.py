"""NOT EXACT: accepts up to 1 / l times as often as the target would."""

from __future__ import annotations

import dataclasses
import math

from specdec.common.values import Checked, PositiveShare
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, draft_distribution, excess, gaps, ratio, token_probs


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
