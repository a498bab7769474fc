"""Computes the numbers in the figures of speed-ups. Letters are those of `common.theory`."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specdec.common import theory
from specdec.common.statistics import Estimate
from specdec.report.summaries import Figures, ReportedRun, device, in_words, models, speedup

LONGEST_DRAFT = 20  # the largest gamma among which the best one is chosen
COST_RATIOS = (0.01, 0.05, 0.1, 0.3)  # the values of c with a curve of best gammas
GAMMAS = (3, 5, 7, 10)  # the values of gamma with a curve of operations
SHARE = 0.05  # c, and operations of a draft token / of a target token, in curves of operations
ALPHAS = tuple(round(0.3 + x / 100, 2) for x in range(70))

# The settings that all runs of a curve share, in addition to models and device.
ONE_CURVE = ("drafter", "sampling", "verifier", "lengths", "split")


class Point(NamedTuple):
    """The predicted and the measured speed-up of one run."""

    name: str
    alpha: float
    c: float
    predicted: float  # for the timed texts, `BenchmarkPrediction.these_texts`
    measured: Estimate


class Curve(NamedTuple):
    """The speed-ups of runs that differ only in gamma, by ascending gamma."""

    label: str  # the settings that differ from other curves; empty if there is no other curve
    gammas: Sequence[int]  # the draft length of each run
    measured: Sequence[Estimate]  # the measured speed-up of each run
    predicted: Sequence[float]  # the predicted speed-up of each run, for the timed texts
    # gamma -> speed-ups for long texts at the smallest and largest alpha of the runs, with c and v
    # interpolated between runs
    band: Mapping[int, tuple[float, float]]

    @property
    def best(self) -> int:
        """The index in `gammas` of the greatest measured speed-up."""
        return max(range(len(self.gammas)), key=lambda i: self.measured[i].value)


def predicts(run: ReportedRun) -> bool:
    """Returns whether a run has a fixed draft length, a predicted speed-up and an alpha."""
    bench = run.bench
    if not bench or not bench["prediction"] or not bench["prediction"]["gamma"]:
        return False
    return bench["alpha"] is not None


def varies(run: ReportedRun) -> bool:
    """Returns whether a run was benchmarked with varying draft lengths."""
    bench = run.bench
    return bool(bench and bench["prediction"] and not bench["prediction"]["gamma"])


def with_prediction(runs: Iterable[ReportedRun]) -> list[tuple[ReportedRun, Figures]]:
    """Returns (run, benchmark) of the runs for which `predicts` is true; ValueError if none."""
    predicted = [(run, run.bench) for run in runs if run.bench and predicts(run)]
    if not predicted:
        raise ValueError(
            "none of the summaries has a predicted speed-up to draw; give a FILE.summary.json of "
            "specdec bench with a drafter and a fixed GAMMA"
        )
    return predicted


def points(runs: Sequence[ReportedRun]) -> list[Point]:
    shown = []
    for run, bench in with_prediction(runs):
        predicted = bench["prediction"]
        costs = predicted["cost_ratio"], predicted["these_texts"]
        shown.append(Point(run.name, bench["alpha"], *costs, speedup(bench)))
    return shown


def curves(runs: Sequence[ReportedRun]) -> list[Curve]:
    """Returns a curve for each group of runs that differ only in gamma."""
    groups = collections.defaultdict(list)
    for _, bench in with_prediction(runs):
        settings = (in_words(bench["run"].get(name)) for name in ONE_CURVE)
        of = models(bench["run"]), device(bench["environment"])
        groups[(*settings, *of)].append(bench)
    groups = {x: y for x, y in groups.items() if len({bench["run"]["gamma"] for bench in y}) > 1}
    differ = [len(set(values)) > 1 for values in zip(*groups, strict=True)]
    return [
        _curve(", ".join(value for value, other in zip(key, differ, strict=True) if other), benches)
        for key, benches in groups.items()
    ]


def papers(runs: Sequence[ReportedRun], gammas: Iterable[int]) -> dict[str, list[float]]:
    """Returns label -> theoretical speed-ups at `gammas` of each published row that a run has."""
    gammas = list(gammas)
    rows = {
        f"alpha {paper.alpha:g}, c {paper.c:g}": paper
        for run, _ in with_prediction(runs)
        if (paper := run.paper)
    }
    return {
        label: [theory.speedup(paper.alpha, gamma, paper.c) for gamma in gammas]
        for label, paper in rows.items()
    }


def surface(alphas: np.ndarray, cost_ratios: np.ndarray) -> np.ndarray:
    """Returns [c, alpha], theoretical speed-ups for v = 1, at the best gamma <= LONGEST_DRAFT."""

    def best(alpha: float, cost_ratio: float) -> float:
        gamma = theory.optimal_gamma(alpha, cost_ratio, LONGEST_DRAFT)
        return theory.speedup(alpha, gamma, cost_ratio)

    return np.array([[best(alpha, c) for alpha in alphas] for c in cost_ratios])


def _curve(label: str, benches: Sequence[Figures]) -> Curve:
    benches = sorted(benches, key=lambda bench: bench["run"]["gamma"])
    gammas = [bench["run"]["gamma"] for bench in benches]
    alphas = [bench["alpha"] for bench in benches]

    def interpolated(name: str, gamma: int) -> float:
        values = collections.defaultdict(list)
        for bench in benches:
            values[bench["run"]["gamma"]].append(bench["prediction"][name])
        means = [statistics.fmean(of_gamma) for of_gamma in values.values()]
        return float(np.interp(gamma, list(values), means))

    def predicted(alpha: float, gamma: int) -> float:
        c, v = (interpolated(name, gamma) for name in ("cost_ratio", "verify_cost"))
        return theory.speedup(alpha, gamma, c, v)

    return Curve(
        label=label,
        gammas=gammas,
        measured=[speedup(bench) for bench in benches],
        predicted=[bench["prediction"]["these_texts"] for bench in benches],
        band={
            gamma: (predicted(min(alphas), gamma), predicted(max(alphas), gamma))
            for gamma in range(gammas[0], gammas[-1] + 1)
        },
    )
