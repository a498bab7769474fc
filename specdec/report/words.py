"""Describes the content of each figure in words, for readers who cannot see the figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from specdec.common import published, theory
from specdec.common.statistics import Estimate
from specdec.common.terminal import counted
from specdec.report import speedups, times
from specdec.report.summaries import ReportedRun

ALPHAS = (0.5, 0.7, 0.9)


def predicted_and_measured(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for point in speedups.points(runs):
        yield f"{point.name}: predicted {point.predicted:.2f}, measured {interval(point.measured)}"


def over_gamma(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for curve in speedups.curves(runs):
        points = zip(curve.gammas, curve.measured, curve.predicted, strict=True)
        for gamma, measured, predicted in points:
            label = f"{curve.label}, " if curve.label else ""
            yield f"{label}gamma {gamma}: {interval(measured)}, predicted {predicted:.2f}"


def over_alpha_and_cost(runs: Sequence[ReportedRun]) -> Iterator[str]:
    ours = ((point, "here", point.measured.value) for point in speedups.points(runs))
    paper = ((row, "paper", row.measured) for row in published.rows().values())
    for row, whose, measured in (*ours, *paper):
        at = f"alpha {row.alpha:.2f}, c {row.c:.2f}"
        yield f"{row.name}, {whose}: {at}, speed-up {measured:.2f}"


def gamma_and_arithmetic(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for cost_ratio in speedups.COST_RATIOS:
        best = (theory.optimal_gamma(x, cost_ratio, speedups.LONGEST_DRAFT) for x in ALPHAS)
        yield f"Best gamma for c {cost_ratio}: {at_alphas(map(str, best))}"
    for gamma in speedups.GAMMAS:
        tokens = (f"{theory.expected_tokens(x, gamma):.2f}" for x in ALPHAS)
        yield f"Tokens per target call, gamma {gamma}: {at_alphas(tokens)}"
        both = (
            f"{theory.speedup(x, gamma, speedups.SHARE):.2f} and "
            f"{theory.operations_factor(x, gamma, speedups.SHARE):.2f}"
            for x in ALPHAS
        )
        yield f"Speed-up and factor of operations, gamma {gamma}: {at_alphas(both)}"


def at_alphas(values: Iterable[str]) -> str:
    return ", ".join(f"{value} at alpha {x}" for value, x in zip(values, ALPHAS, strict=True))


def one_generation(runs: Sequence[ReportedRun]) -> Iterator[str]:
    timeline = times.timeline(runs)
    seconds = ", ".join(f"{mode} {1e3 * took:.1f} ms" for mode, took in timeline.seconds.items())
    yield f"Text {timeline.text} of {timeline.name}, {counted(timeline.tokens, 'token')}: {seconds}"
    for number, call in enumerate(timeline.calls, start=1):
        of_call = ", ".join(f"{name} {count}" for name, count in call._asdict().items())
        yield f"Call {number}: {of_call}"


def draft_lengths(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for lengths in times.lengths(runs):
        calls = ", ".join(f"{accepted} of {drafted}" for _, drafted, accepted, _ in lengths.calls)
        yield f"{lengths.name}, text {lengths.text}, accepted by call: {calls}"


def one_iteration(runs: Sequence[ReportedRun]) -> Iterator[str]:
    for name, parts in times.waterfalls(runs).items():
        of_run = (f"{part.name} {part.in_words}" for part in parts)
        negative = any(part.seconds < 0 for part in parts)
        end = f"; none: {times.NEGATIVE}" if negative else ""
        yield f"{name}, in steps of the target: {', '.join(of_run)}{end}"


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
