"""Accept with probability min(1, p / q), else draw from what p has more than q."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, draft_distribution, excess, ratio, token_probs


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
