"""Predicted speed-ups: rooflines of the calls in, `theory.speedup` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from specdec import theory
from specdec.compile.hardware import LAYER_SECONDS, Call, Chip

LONGEST = 10  # draft tokens that are predicted for

# Leviathan et al. (2211.17192), table 2: {emb_dim of the draft: {task and temperature: alpha}}.
PAPER_ALPHAS: Mapping[int, Mapping[str, float]] = {
    512: {"EnDe T=0": 0.75, "EnDe T=1": 0.62, "CNN/DM T=0": 0.65, "CNN/DM T=1": 0.53},
    768: {"EnDe T=0": 0.80, "EnDe T=1": 0.68, "CNN/DM T=0": 0.73, "CNN/DM T=1": 0.55},
    1024: {"EnDe T=0": 0.82, "EnDe T=1": 0.71, "CNN/DM T=0": 0.74, "CNN/DM T=1": 0.56},
}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Of one iteration's parts; what is neither drafting nor verifying counts as nothing.

    layer_seconds: assumed for each decoder layer beside the roofline (`hardware.LAYER_SECONDS`).
    target, draft: seconds of a call with one token.
    cost_ratio: c. verify_cost: v(gamma), for gamma = 0, 1, ..
    speedups: {alpha: [S at gamma 1, 2, ..]}.
    """

    layer_seconds: float
    target: float
    draft: float
    cost_ratio: float
    verify_cost: list[float]
    speedups: dict[str, list[float]]


def predict(
    chip: Chip, target: Call, draft: Call, alphas: Mapping[str, float], longest: int = LONGEST
) -> tuple[Prediction, Prediction]:
    """With nothing but the roofline, and with what a layer is assumed to take beside it."""

    def at(layer_seconds: float) -> Prediction:
        one, step = (call.seconds(chip, 1, layer_seconds) for call in (target, draft))
        verify = [target.seconds(chip, g + 1, layer_seconds) / one for g in range(longest + 1)]
        return Prediction(
            layer_seconds=layer_seconds,
            target=one,
            draft=step,
            cost_ratio=step / one,
            verify_cost=verify,
            speedups={
                name: [
                    theory.speedup(alpha, gamma, step / one, verify[gamma])
                    for gamma in range(1, longest + 1)
                ]
                for name, alpha in alphas.items()
            },
        )

    return at(0.0), at(LAYER_SECONDS)
