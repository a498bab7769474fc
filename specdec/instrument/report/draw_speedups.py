"""Draws speed-ups, predicted and measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from specdec.common import published, theory
from specdec.instrument.report import speedups
from specdec.instrument.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    HALO,
    ORANGE,
    PINK,
    RED,
    SKY,
    blank,
    captioned,
    interval,
    name_points,
    only_ticks,
)
from specdec.instrument.report.speedups import ALPHAS
from specdec.instrument.report.summaries import ReportedRun

COLOURS = (BLUE, RED, GREEN, ORANGE, PINK, SKY)
ASIDE = 0.015  # of the longest gamma: curves lie this far apart, so that intervals can be seen
LABEL = 90  # characters in a line of a legend
LEVELS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10)


def predicted_and_measured(runs: Sequence[ReportedRun]) -> Figure:
    """Draws a point for each run, and lines where measured is 1 and 0.95 of predicted."""
    figure = blank(5.6)
    figure.set_layout_engine("constrained", w_pad=0.15)  # a browser's letters may be wider
    axes = figure.add_subplot()
    shown = speedups.points(runs)
    for one in shown:
        interval(axes, one.predicted, one.measured, BLUE)
    ends = [end for one in shown for end in (one.predicted, one.measured.low, one.measured.high)]
    margin = 0.05 * max(ends)
    limits = np.array([min(ends) - margin, max(ends) + margin])
    axes.plot(limits, limits, color=GREY, linewidth=1, label="measured as predicted")
    axes.plot(limits, 0.95 * limits, "--", color=GREY, linewidth=1, label="0.95 of predicted")
    axes.set(xlim=limits, ylim=limits, aspect="equal", title="Speed-up, predicted and measured")
    axes.set(xlabel="predicted for these texts", ylabel="measured, 95 % interval over texts")
    name_points(axes, [(one.name, one.predicted, one.measured.value) for one in shown])
    axes.legend(loc="upper left")
    caption = "Predicted from c, v, the prefill and the number of target calls, all measured."
    return captioned(figure, runs, caption)


def over_gamma(runs: Sequence[ReportedRun]) -> Figure:
    """Draws measured and predicted speed-up over gamma, one colour for each curve."""
    curves = speedups.curves(runs)
    longest = max(max(curve.gammas) for curve in curves)
    published = speedups.papers(runs, range(1, longest + 1))
    figure = blank(5)
    axes = figure.add_subplot()
    for i, curve in enumerate(curves):
        aside = ASIDE * longest * (i - (len(curves) - 1) / 2)
        _curve(axes, curve, COLOURS[i % len(COLOURS)], aside)
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Speed-up over gamma", xlabel="gamma, drafted tokens per target call")
    axes.set(ylabel="speed-up over the target alone")
    for values in published.values():
        axes.plot(range(1, longest + 1), values, ":", color="black", linewidth=1.2)
    axes.set_ylim(bottom=0)
    name_points(axes, [(label, longest, values[-1]) for label, values in published.items()])
    handles = [
        *axes.get_legend_handles_labels()[0],
        Line2D([], [], color=GREY, marker="o", label="measured, 95 % interval over texts"),
        Line2D([], [], color=GREY, ls="--", marker="o", mfc="w", label="predicted, these texts"),
        Patch(color=GREY, alpha=0.3, label="predicted, long texts, from least to greatest alpha"),
    ]
    if published:
        label = "theory for the alpha and c of Leviathan et al., v = 1"
        handles.append(Line2D([], [], ls=":", color="black", label=label))
    for one in handles:  # a name may be longer than the figure is wide
        one.set_label(textwrap.fill(str(one.get_label()), LABEL))
    figure.legend(handles=handles, loc="outside upper left")
    lines = sum(str(one.get_label()).count("\n") + 1 for one in handles)
    figure.set_figheight(4.2 + 0.2 * lines)
    caption = (
        "A star is the best measured gamma. For long texts: alpha, c and v as measured, each draft "
        "token accepted independently, no prefill, no overhead."
    )
    return captioned(figure, runs, caption)


def _curve(axes: Axes, curve: speedups.Curve, colour: str, aside: float) -> None:
    gammas = list(curve.band)
    low, high = zip(*curve.band.values(), strict=True)
    axes.fill_between(gammas, low, high, color=colour, alpha=0.2, linewidth=0)
    for edge in (low, high):  # a band may be as thin as a line
        axes.plot(gammas, edge, color=colour, alpha=0.4, linewidth=0.8)
    at = [gamma + aside for gamma in curve.gammas]
    axes.plot(at, curve.predicted, "o--", color=colour, mfc="white", markersize=5, linewidth=1)
    axes.plot(at, [one.value for one in curve.measured], color=colour)
    for gamma, one in zip(at, curve.measured, strict=True):
        interval(axes, gamma, one, colour)
    best = curve.measured[curve.best].value
    label = f"{curve.label or 'best'}: {best:.2f} at gamma {curve.gammas[curve.best]}"
    axes.plot(at[curve.best], best, "*", color=colour, markersize=11, ls="", label=label)


def over_alpha_and_cost(runs: Sequence[ReportedRun]) -> Figure:
    """Draws the theoretical speed-up over alpha and c, with measured points."""
    figure = blank(6)
    axes = figure.add_subplot()
    ours, paper = speedups.points(runs), published.rows().values()
    every = [*ours, *paper]
    alphas = np.linspace(max(0, min(one.alpha for one in every) - 0.03), 1, 60)
    cost_ratios = np.linspace(0, 1.2 * max(one.c for one in every), 60)
    surface = speedups.surface(alphas, cost_ratios)
    lines = axes.contour(alphas, cost_ratios, surface, LEVELS, colors=SKY, linewidths=1)
    places = [_label_place(level, alphas, cost_ratios, surface) for level in LEVELS]
    places = [place for place in places if place]
    labels = axes.clabel(lines, fmt="%g", fontsize=9, colors=BLUE, manual=places)
    for label in labels:
        label.set_path_effects([HALO])
    for one in paper:
        at = (one.alpha, one.c)
        axes.plot(*at, "s", color=GREY, markersize=5)
        label = axes.annotate(f"{one.measured:.1f}", at, (0, 6), textcoords="offset points")
        label.set(ha="center", fontsize=8, path_effects=[HALO])
    for one in ours:
        axes.plot(one.alpha, one.c, "o", color=RED, mec="white", markersize=7)
    names = [f"{one.name}: {one.measured.value:.2f}" for one in ours]
    name_points(axes, [(name, one.alpha, one.c) for name, one in zip(names, ours, strict=True)])
    axes.set(title="Speed-up over alpha and c", xlabel="alpha, the share of drafts accepted")
    axes.set(ylabel="c, a draft step in target steps")
    handles = [
        Line2D([], [], color=SKY, label="theory, best gamma, v = 1"),
        Line2D([], [], ls="", marker="o", color=RED, label="measured here"),
        Line2D([], [], ls="", marker="s", color=GREY, label="measured by Leviathan et al., TPU v4"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3)
    caption = (
        f"Theory: long texts, no overhead, gamma at most {speedups.LONGEST_DRAFT}. Measured: whole "
        "texts, each run with its own gamma and v."
    )
    return captioned(figure, runs, caption)


def gamma_and_arithmetic(runs: Sequence[ReportedRun]) -> Figure:
    """Draws tokens per call and best gamma over alpha, and the extra arithmetic of speculation.

    The figures repeat Leviathan et al. 2022, figures 2 to 4, with points for the runs.
    """
    figure = blank(4.6)
    first, left, right = figure.subplots(1, 3)
    for cost_ratio, colour in zip(speedups.COST_RATIOS, COLOURS, strict=False):
        best = [theory.optimal_gamma(x, cost_ratio, speedups.LONGEST_DRAFT) for x in ALPHAS]
        left.plot(ALPHAS, best, color=colour, label=f"c {cost_ratio}", linewidth=1)
    shown = speedups.with_prediction(runs)
    for _, bench in shown:
        for axes, value in (first, bench["tau"]), (left, bench["prediction"]["gamma"]):
            axes.plot(bench["alpha"], value, "o", color=RED, mec="white", markersize=7)
    first.set(title="Tokens per call", xlabel="alpha")
    left.set(title="Best gamma", xlabel="alpha")
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    for gamma, colour in zip(speedups.GAMMAS, COLOURS, strict=False):
        style: dict[str, Any] = {"color": colour, "linewidth": 1}
        tokens = [theory.expected_tokens(x, gamma) for x in ALPHAS]
        first.plot(ALPHAS, tokens, label=f"gamma {gamma}", **style)
        faster = [theory.speedup(x, gamma, speedups.SHARE) for x in ALPHAS]
        right.plot(ALPHAS, faster, label=f"gamma {gamma}", **style)
        operations = [theory.operations_factor(x, gamma, speedups.SHARE) for x in ALPHAS]
        right.plot(ALPHAS, operations, "--", **style)
    for axes in (first, left):
        axes.plot([], [], "o", color=RED, label="runs")
    right.plot([], [], "--", color=GREY, label="operations")
    right.set(title="Speed-up, operations", xlabel="alpha", yscale="log", ylim=(0.8, 25))
    only_ticks(right.yaxis, (1, 2, 5, 10, 20))
    for axes in (first, left, right):
        axes.legend(loc="upper left", fontsize=8)
    caption = (
        f"Theory with v = 1, long texts, no overhead; on the right c and the draft's share of a "
        f"token's operations are {speedups.SHARE}. The best gamma is at most "
        f"{speedups.LONGEST_DRAFT}, and 0 where no draft pays."
    )
    return captioned(figure, runs, caption)


def _label_place(level: float, alphas, cost_ratios, surface) -> tuple[float, float] | None:
    """Returns the place of a contour line's label: near three fifths of the height, inside."""
    rows = range(len(cost_ratios))
    for i in sorted(rows, key=lambda i: abs(i - 0.6 * len(rows))):
        if surface[i, 2] < level < surface[i, -3]:
            return float(np.interp(level, surface[i], alphas)), float(cost_ratios[i])
    return None
