"""Draws the figure of `specdec tune`: predicted speed-ups over draft lengths and thresholds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from specdec.common import records
from specdec.report import figures
from specdec.report.figures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, STYLE

PANELS = {
    "fixed": ("draft length", (("fixed", BLUE),)),
    "probability": (
        "threshold, a probability",
        (("confidence", ORANGE), ("joint_confidence", GREY), ("disco", GREEN)),
    ),
    "entropy": ("threshold, nats", (("entropy", PINK),)),
}
LEVEL = {"heuristic": RED, "cost_optimal": SKY}  # kinds without a setting, drawn as levels


def draw(results: Sequence[Any], path: Path) -> None:
    """Writes an SVG with a row of panels for each `predict.tuning.Result`."""
    with matplotlib.rc_context(STYLE):
        figure = figures.blank(3.0 * len(results) + 0.3)
        rows = figure.subplots(len(results), len(PANELS), sharey=True, squeeze=False)
        for result, row in zip(results, rows, strict=True):
            for axes, (label, kinds) in zip(row, PANELS.values(), strict=True):
                for kind, colour in kinds:
                    _curve(axes, result, kind, colour)
                _levels(axes, result)
                axes.set_xlabel(label)
            row[0].set_ylabel("times as fast as the target alone")
            row[0].set_title(result.variant or "the run's drafter")
        named = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
        handles = {label: handle for handle, label in itertools.chain.from_iterable(named)}
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=4)
        records.write(path, figures.svg(figure))


def _curve(axes: Axes, result: Any, kind: str, colour: str) -> None:
    of_kind = [tried for tried in result.tried if tried.candidate.kind == kind]
    varies = [len(tried.candidate.schedule.buckets) > 1 for tried in of_kind]
    longest = {tried.candidate.schedule.buckets[-1] for tried in of_kind}
    if kind == "fixed":
        of_kind = [tried for tried, several in zip(of_kind, varies, strict=True) if not several]
        longest = {0}
    for length in sorted(longest):
        of_length = [x for x in of_kind if not length or x.candidate.schedule.buckets[-1] == length]
        points = sorted((x.candidate.setting, result.speedup(x).value) for x in of_length)
        label = kind.replace("_", " ") if length == max(longest) else None
        style = "-" if label else ":"
        axes.plot(*zip(*points, strict=True), f"o{style}", color=colour, markersize=3, label=label)


def _levels(axes: Axes, result: Any) -> None:
    for kind, colour in LEVEL.items():
        speedups = [result.speedup(x).value for x in result.tried if x.candidate.kind == kind]
        if speedups:
            axes.axhline(max(speedups), color=colour, linewidth=1, label=kind.replace("_", " "))
    oracle = float(result.alone.sum() / result.oracle.sum())
    axes.axhline(oracle, color=GREY, linestyle="--", linewidth=1, label="oracle of rejections")
    axes.axhline(1, color=GREY, linewidth=0.8)
