"""NOT EXACT: accept up to 1 / l times as often as the target would."""

from __future__ import annotations

import dataclasses
import math

from specdec.common.values import Checked, PositiveShare
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, draft_distribution, excess, gaps, ratio, token_probs


@dataclasses.dataclass(frozen=True)
class Lenient(Checked, Verifier):
    """NOT EXACT. The lenience of Leviathan et al. 2022, appendix A.5.

    lenience: l, above 0 and at most 1, where it is exact.

    Drawn, a token is kept with probability min(1, p / (l q)), and behind a refused one comes a draw
    from norm(max(0, p - q)). Where something was drafted, x is emitted with probability

      min(q(x), p(x) / l) + (1 - sum min(q, p / l)) norm(max(0, p - q))(x),

    at most p(x) / l. (The paper does not say what follows a refusal; max(0, p - l q) keeps the
    bound too, but is farther from p.)

    Greedy, a token is kept if its softmax is at least l times the highest one, before anything is
    standardised; else the likeliest one is taken. (The paper prints the comparison the wrong way
    round: with l = 1 everything would be kept.)
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
