"""All figures, as PNG files or as SVG in a page. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from specdec.instrument.report import canvas, speedups
from specdec.instrument.report.canvas import BLUE, GREY, STYLE
from specdec.instrument.report.draw_speedups import (
    gamma_and_arithmetic,
    over_alpha_and_cost,
    over_gamma,
    predicted_and_measured,
)
from specdec.instrument.report.draw_times import draft_lengths, one_generation, one_iteration
from specdec.instrument.report.speedups import predicts, varies
from specdec.instrument.report.summaries import ReportedRun

FIGURES = (
    predicted_and_measured,
    over_gamma,
    over_alpha_and_cost,
    gamma_and_arithmetic,
    one_generation,
    one_iteration,
)

# Colours that a page chooses by itself, so that figures can be read on light and on dark.
PAGE = {"#000000": "currentColor", "#ffffff": "var(--paper)"}
PAGE |= {BLUE.lower(): "var(--blue)", GREY.lower(): "var(--muted)"}


def of(runs: Sequence[ReportedRun]) -> Sequence[Callable[[Sequence[ReportedRun]], Figure]]:
    """Returns the figures of some runs, of fixed draft lengths and of lengths that vary."""
    of_lengths = (draft_lengths,) if any(map(varies, runs)) else ()
    if of_lengths and not any(map(predicts, runs)):
        return of_lengths
    curves = speedups.curves(runs)
    return (*(one for one in FIGURES if curves or one is not over_gamma), *of_lengths)


def draw(runs: Sequence[ReportedRun], folder: str | Path) -> list[Path]:
    """Writes the figures into a folder, which is made if need be, and returns the files."""
    folder = Path(folder)
    with matplotlib.rc_context(STYLE):
        figures = {folder / f"{one.__name__}.png": one(runs) for one in of(runs)}
        folder.mkdir(parents=True, exist_ok=True)
        for path, figure in figures.items():
            canvas.write_png(figure, path)
    return list(figures)


def svgs(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Returns name -> `<svg>` element, with text as text; raises ValueError as `draw` does."""
    with matplotlib.rc_context(STYLE):
        return {one.__name__: element(one(runs), one.__name__) for one in of(runs)}


def element(figure: Figure, name: str) -> str:
    """Returns a figure as an element for a page with several; its ids begin with the name.

    Call it in the context of `canvas.STYLE`.
    """
    svg = canvas.svg(figure, transparent=True)
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(r"#\w{6}\b", lambda colour: PAGE.get(colour[0].lower(), colour[0]), svg)
