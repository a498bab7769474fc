"""The look that all figures share: size, colours, the caption with the hardware."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, NullLocator

from specdec.common import records
from specdec.common.statistics import Estimate
from specdec.instrument.report.speedups import predicts, varies
from specdec.instrument.report.summaries import ReportedRun, device

WIDTH, DPI = 8, 200  # inches and pixels per inch: twice the 800 pixels that a page shows
ROW = 0.24  # inches that a line of text or a bar takes
NAME = 0.07  # of the axes' height, which a name takes

# Okabe and Ito's colours, told apart by the colour-blind too.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, GREY, PALE = "#56B4E9", "#CC79A7", "#6E6E6E", "#D9D9D9"
HALO = withStroke(linewidth=2, foreground="white")

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # file names may hold dollars
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "specdec",
}


def blank(height: float) -> Figure:
    """Returns a figure of this height in inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg(figure: Figure, **options: Any) -> str:
    """Returns a figure as SVG, deterministically; call it in the context of STYLE."""
    written, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(written, format="svg", metadata=nothing, **options)
    return written.getvalue()


def write_png(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, the same for every version of matplotlib."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI, metadata={"Software": None})
    records.write(path, written.getvalue())


def only_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Marks these values of an axis and no others: on a short logarithmic axis labels collide."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def captioned(figure: Figure, runs: Sequence[ReportedRun], caption: str) -> Figure:
    """Returns the figure, with a caption and the hardware of the runs underneath."""
    shown = [run.bench for run in runs if run.bench and (predicts(run) or varies(run))]
    places = dict.fromkeys(device(bench["environment"]) for bench in shown)
    text = textwrap.fill(f"{caption} On {'; '.join(places)}.", 125)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color=GREY)
    return figure


def interval(axes: Axes, x: float, y: Estimate, colour: str) -> None:
    """Draws a point with its interval."""
    below, above = y.value - y.low, y.high - y.value
    axes.errorbar(x, y.value, [[below], [above]], fmt="o", color=colour, markersize=5, capsize=3)


def name_points(axes: Axes, named: Sequence[tuple[str, float, float]]) -> None:
    """Writes the names of points in a column on the right, so that none hides another."""
    low, high = axes.get_ylim()
    heights = [(y - low) / (high - low) for _, _, y in named]
    places = apart(heights, NAME)
    for (name, x, y), place in zip(named, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.04, place),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            annotation_clip=False,
            zorder=1,  # lines pass under other points and their labels
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkB": 4},
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Returns places near some heights, in order, at least `gap` apart and not below 0."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    places = [0.0] * len(heights)
    above = float("-inf")
    for i in order:
        above = places[i] = max(heights[i], above + gap)
    middle = (sum(places) - sum(heights)) / max(1, len(heights))
    down = min(middle, max(0.0, min(places, default=0.0)))
    return [place - down for place in places]
