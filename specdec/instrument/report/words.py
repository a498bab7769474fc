"""Figures in words: what each of them shows, for who does not see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from specdec.common.statistics import Estimate
from specdec.common.terminal import counted
from specdec.instrument.report import speedups, times
from specdec.instrument.report.summaries import ReportedRun


def predicted_and_measured(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for one in speedups.comparisons(runs):
        yield f"{one.name}: predicted {one.predicted:.2f}, measured {interval(one.measured)}"


def over_gamma(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for curve in speedups.curves(runs):
        points = zip(curve.gammas, curve.measured, curve.predicted, strict=True)
        for gamma, measured, predicted in points:
            label = f"{curve.label}, " if curve.label else ""
            yield f"{label}gamma {gamma}: {interval(measured)}, predicted {predicted:.2f}"


def over_alpha_and_cost(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for whose, spots in (("here", speedups.spots(runs)), ("paper", speedups.paper_spots())):
        for one in spots:
            at = f"alpha {one.alpha:.2f}, c {one.cost_ratio:.2f}"
            yield f"{one.name}, {whose}: {at}, speed-up {one.speedup:.2f}"


def gamma_and_arithmetic(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for cost_ratio in speedups.COST_RATIOS:
        found = dict(speedups.best_gammas(cost_ratio))
        at = ", ".join(f"{found[alpha]} at alpha {alpha}" for alpha in (0.5, 0.7, 0.9))
        yield f"Best gamma for c {cost_ratio}: {at}"
    for gamma in speedups.GAMMAS:
        tokens = dict(speedups.tokens_per_call(gamma))
        at = (f"{tokens[alpha]:.2f} at alpha {alpha}" for alpha in (0.5, 0.7, 0.9))
        yield f"Tokens per target call, gamma {gamma}: {', '.join(at)}"
        curve = {alpha: rest for alpha, *rest in speedups.time_and_operations(gamma)}
        at = (f"{curve[a][0]:.2f} and {curve[a][1]:.2f} at alpha {a}" for a in (0.5, 0.7, 0.9))
        yield f"Speed-up and factor of operations, gamma {gamma}: {', '.join(at)}"


def one_generation(runs: Sequence[ReportedRun]) -> Iterator[str]:
    one = times.timeline(runs)
    seconds = ", ".join(f"{mode} {1e3 * took:.1f} ms" for mode, took in one.seconds.items())
    yield f"Text {one.text} of {one.name}, {counted(one.tokens, 'token')}: {seconds}"
    for number, call in enumerate(one.calls, start=1):
        of_call = ", ".join(f"{name} {count}" for name, count in call._asdict().items())
        yield f"Call {number}: {of_call}"


def draft_lengths(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for one in times.lengths(runs):
        calls = ", ".join(f"{kept} of {drafted}" for _, drafted, kept, _ in one.calls)
        yield f"{one.name}, text {one.text}, accepted by call: {calls}"


def one_iteration(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for name, parts in times.waterfalls(runs).items():
        of_run = (f"{part.name} {part.steps:.2f} ({1e3 * part.seconds:.2f} ms)" for part in parts)
        yield f"{name}, in steps of the target: {', '.join(of_run)}"


def interval(measured: Estimate) -> str:
    return f"{measured.value:.2f} ({measured.interval()})"


OF: Mapping[str, tuple[str, Callable[[Sequence[ReportedRun]], Iterator[str]]]] = {
    "predicted_and_measured": ("Speed-up, predicted and measured", predicted_and_measured),
    "over_gamma": ("Speed-up over gamma", over_gamma),
    "over_alpha_and_cost": ("Speed-up over alpha and c", over_alpha_and_cost),
    "gamma_and_arithmetic": ("Tokens per call, best gamma, and operations", gamma_and_arithmetic),
    "one_generation": ("One generation", one_generation),
    "draft_lengths": ("Draft lengths along a generation", draft_lengths),
    "one_iteration": ("Where the time of an iteration goes", one_iteration),
}
