"""Predicted speed-ups: rooflines of the calls in, `theory.speedup` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from specdec.common import published, theory
from specdec.decoding.beam_plan import BeamPlan
from specdec.instrument.compile.hardware import LAYER_SECONDS, Call, Chip
from specdec.plan import Plan
from specdec.schedules import Fixed
from specdec.types import of_depth, verifies

LONGEST = 10  # draft tokens that are predicted for

_WIDTHS = {"small": 512, "base": 768, "large": 1024}  # T5's

# As published, of encoder-decoders: {emb_dim of the draft: {task and temperature: alpha}}.
PAPER_ALPHAS: Mapping[int, Mapping[str, float]] = {
    width: {
        f"{row.task} T={row.temperature}": row.alpha
        for row in published.rows().values()
        if row.draft == draft
    }
    for draft, width in _WIDTHS.items()
}


@dataclasses.dataclass(frozen=True)
class RooflinePrediction:
    """The predicted model calls of an iteration; all else in it counts as nothing."""

    layer_seconds: float  # assumed for each decoder layer in addition (`hardware.LAYER_SECONDS`)
    target: float  # seconds of a call with one token
    draft: float  # seconds of a draft token, in drafts of the plan's longest length
    cost_ratio: float  # c, `draft` divided by `target`
    # seconds of a draft of the plan's longest length, and of the target's call on it. Tokens per
    # second are TAR, the tokens of a target call with its own, divided by this.
    iteration: float
    verify_cost: list[float]  # v(gamma), for gamma = 0, 1, ..
    speedups: dict[str, list[float]]  # {alpha: [S at gamma 1, 2, ...]}


def predict(
    chip: Chip,
    plan: Plan,
    calls: Mapping[str, Call],
    alphas: Mapping[str, float],
    longest: int = LONGEST,
) -> tuple[RooflinePrediction, RooflinePrediction]:
    """Returns two predictions: by the roofline alone, and with a time for each layer too."""
    draft_lengths = range(1, longest + 1)

    def at(layer_seconds: float) -> RooflinePrediction:
        costs = {
            gamma: _costs(chip, plan, calls, gamma, layer_seconds)
            for gamma in {*draft_lengths, plan.longest_draft}
        }
        (step,) = plan.alone().parts()[:1]
        alone = calls["target"].seconds(chip, step.width, layer_seconds)
        longest_draft = costs[plan.longest_draft]
        draft = longest_draft.draft
        # c and v(gamma), as in `theory`.
        ratios = {gamma: (one.draft / alone, one.verify / alone) for gamma, one in costs.items()}
        return RooflinePrediction(
            layer_seconds=layer_seconds,
            target=alone,
            draft=draft,
            cost_ratio=draft / alone,
            iteration=plan.longest_draft * draft + longest_draft.verify,
            verify_cost=[1.0, *(ratios[gamma][1] for gamma in draft_lengths)],
            speedups={
                label: [theory.speedup(alpha, gamma, *ratios[gamma]) for gamma in draft_lengths]
                for label, alpha in alphas.items()
            },
        )

    return at(0.0), at(LAYER_SECONDS)


@dataclasses.dataclass(frozen=True)
class BeamPrediction:
    """The predicted model calls of a beam search; all else in it counts as nothing."""

    layer_seconds: float  # assumed for each decoder layer in addition
    step: float  # seconds of a step of the target alone, one call of w tokens
    iteration: float  # seconds of a call on a tree, and of the draft that grows it
    # the steps per call at which the search is as fast as the target alone. The speed-up is the
    # steps per call divided by this number.
    pays_from: float


def predict_beams(
    chip: Chip, plan: BeamPlan, calls: Mapping[str, Call]
) -> tuple[BeamPrediction, BeamPrediction]:
    """Returns two predictions: by the roofline alone, and with a time for each layer too."""

    def at(layer_seconds: float) -> BeamPrediction:
        step, iteration = (
            sum(n * calls[role].seconds(chip, width, layer_seconds) for role, width, n in parts)
            for parts in (plan.alone().parts(), plan.parts())
        )
        return BeamPrediction(layer_seconds, step, iteration, iteration / step)

    return at(0.0), at(LAYER_SECONDS)


@dataclasses.dataclass(frozen=True)
class Exit:
    """A token that leaves the target after some layers, decoded without a drafter."""

    layers: int  # the layers that the token passes
    # the time of its call, by the roofline and with a time for each layer in addition
    seconds: tuple[float, float]
    speedup: tuple[float, float]  # over the whole target, in the same two ways


def exits(chip: Chip, plan: Plan, calls: Mapping[str, Call]) -> list[Exit]:
    """Returns a prediction for each depth of the target's calls; arguments as for `predict`."""

    def seconds(role: str) -> tuple[float, float]:
        return calls[role].seconds(chip, 1), calls[role].seconds(chip, 1, LAYER_SECONDS)

    found, whole = [], seconds("target")
    for depth in plan.target.depths:
        taken = seconds(of_depth(depth))
        found.append(Exit(depth, taken, (whole[0] / taken[0], whole[1] / taken[1])))
    return found


class _Costs(NamedTuple):
    """Seconds of an iteration."""

    verify: float
    draft: float  # for each token of it


def _costs(
    chip: Chip, plan: Plan, calls: Mapping[str, Call], gamma: int, layer_seconds: float
) -> _Costs:
    verify = draft = 0.0
    for role, width, count in dataclasses.replace(plan, schedule=Fixed(gamma)).parts():
        spent = count * calls[role].seconds(chip, width, layer_seconds)
        verify, draft = (verify + spent, draft) if verifies(role) else (verify, draft + spent)
    return _Costs(verify, draft / gamma)
