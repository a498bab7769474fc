"""Costs and predicted speed-ups of the calls' rooflines."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from specdec.common import published
from specdec.decoding.beam_plan import BeamPlan
from specdec.plan import Plan
from specdec.predict.costs import Calls, Costs
from specdec.predict.hardware import LAYER_SECONDS, Call, Chip
from specdec.schedules import Fixed
from specdec.types import Part, of_depth

LONGEST = 10  # draft tokens that are predicted for
WIDEST = 128  # tokens of a call of which costs are given

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


def roofline_costs(
    calls: Mapping[str, Call],
    chip: Chip,
    source: str = "",
    layer_seconds: float = LAYER_SECONDS,
    widths: Sequence[int] = range(1, WIDEST + 1),
) -> Costs:
    """Returns the costs of a roofline, without prefill; the step is one of the first width."""
    seconds = {
        Calls(role, width): call.seconds(chip, width, layer_seconds)
        for role, call in calls.items()
        for width in dict.fromkeys(widths)
    }
    source = f"{source} and {layer_seconds * 1e6:.0f} us for each layer, no prefill"
    return Costs(seconds, step=seconds[Calls("target", widths[0])], source=source)


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
    lengths = range(1, longest + 1)
    parts = {
        gamma: dataclasses.replace(plan, schedule=Fixed(gamma)).parts()
        for gamma in {*lengths, plan.longest_draft}
    }
    widths = _widths(plan.alone().parts()[:1], *parts.values())

    def at(layer_seconds: float) -> RooflinePrediction:
        known = roofline_costs(calls, chip, "", layer_seconds, widths)
        iterations = {gamma: known.iteration(calls, gamma) for gamma, calls in parts.items()}
        longest_draft = iterations[plan.longest_draft]
        return RooflinePrediction(
            layer_seconds=layer_seconds,
            target=known.step,
            draft=longest_draft.draft / plan.longest_draft,
            cost_ratio=longest_draft.cost_ratio,
            iteration=longest_draft.seconds,
            verify_cost=[1.0, *(iterations[gamma].verify_cost for gamma in lengths)],
            speedups={
                label: [iterations[gamma].speedup(alpha) for gamma in lengths]
                for label, alpha in alphas.items()
            },
        )

    return at(0.0), at(LAYER_SECONDS)


def _widths(*parts: Iterable[Part]) -> list[int]:
    return [part.width for part in itertools.chain.from_iterable(parts)]


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

    both = plan.alone().parts(), plan.parts()

    def at(layer_seconds: float) -> BeamPrediction:
        known = roofline_costs(calls, chip, "", layer_seconds, _widths(*both))
        step, iteration = (known.iteration(parts).seconds for parts in both)
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

    of_all, predicted = seconds("target"), []
    for depth in plan.target.depths:
        leaving = seconds(of_depth(depth))
        speedup = of_all[0] / leaving[0], of_all[1] / leaving[1]
        predicted.append(Exit(depth, leaving, speedup))
    return predicted
