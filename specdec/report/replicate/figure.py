"""Draws the figures of a study: the speed-ups of all rows, and the figures of `report`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from specdec.report import figures, words
from specdec.report.figures import BLUE, GREEN, GREY, ORANGE, PINK, STYLE
from specdec.report.replicate.results import HERE, RowFigures
from specdec.report.replicate.study_tables import GIVEN, RECORDED
from specdec.report.speedups import predicts
from specdec.report.summaries import ReportedRun

TITLE = "Rows: published, predicted and measured"
PREDICTED = (ORANGE, GREEN, PINK)  # colours, in the order of the devices predicted for


def figures_of(row: RowFigures) -> dict[str, float]:
    """Returns name -> the known speed-ups of a row, such as "published" and "measured"."""
    speedups = {"published": row.row.published.speedup}
    speedups |= {f"predicted, {x}, {GIVEN}": on_device.given for x, on_device in row.places.items()}
    speedups[f"predicted, {HERE}, {RECORDED}"] = row.at(HERE).recorded
    speedups["measured"] = row.measured.get("speedup")
    return {name: speedup for name, speedup in speedups.items() if speedup is not None}


def of_rows(rows: Sequence[RowFigures]) -> Figure:
    """Draws the speed-ups of each row on a line of its own."""
    figure = figures.blank(1.2 + figures.ROW * 1.3 * len(rows))
    axes = figure.subplots()
    names = dict.fromkeys(name for row in rows for name in figures_of(row))
    predicted = [name for name in names if name not in ("published", "measured")]
    colours = dict(zip(predicted, itertools.cycle(PREDICTED), strict=False))
    for height, row in enumerate(rows):
        for name, speedup in figures_of(row).items():
            if name == "published":
                axes.plot(speedup, height, "D", color=GREY, label=name)
            elif name == "measured":
                ends = (row.measured.get(end, speedup) for end in ("low", "high"))
                ends = [[abs(end - speedup)] for end in ends]
                axes.errorbar(
                    speedup, height, xerr=ends, fmt="s", color=BLUE, capsize=3, label=name
                )
            else:
                colour = colours[name]
                axes.plot(speedup, height, "o", color=colour, fillstyle="none", label=name)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), list(map(_name, rows)))
    axes.set_ylim(len(rows) - 0.5, -0.5)  # from top to bottom
    axes.set_xlabel("times as fast as the target alone")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=2)
    return figure


def _name(row: RowFigures) -> str:
    return " ".join((row.row.name, *(row.marks if row.measured else ())))


def draw(
    rows: Sequence[RowFigures], runs: Sequence[ReportedRun], folder: Path
) -> tuple[dict[str, str], list[Mapping[str, object]]]:
    """Writes the figures to folder/figures; returns title -> path, and the rows' figure for HTML.

    Returns ({}, []) if no speed-up is known."""
    known = {_name(row): speedups for row in rows if (speedups := figures_of(row))}
    if not known:
        return {}, []
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        drawn = of_rows(rows)
        figures.write_png(drawn, target / "rows.png")
        svg = figures.element(drawn, "rows")
    paths = {TITLE: "figures/rows.png"}
    if any(map(predicts, runs)):
        for path in figures.draw(runs, target):
            paths[words.OF[path.stem][0]] = f"figures/{path.name}"
    words_of_rows = [
        f"{name}: {'; '.join(f'{what} {x:.2f}' for what, x in speedups.items())}"
        for name, speedups in known.items()
    ]
    return paths, [{"name": "rows", "title": TITLE, "svg": svg, "words": words_of_rows}]
