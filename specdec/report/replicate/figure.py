"""The figures of a study: its rows, published, predicted and measured, and those of `report`."""

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
PREDICTED = (ORANGE, GREEN, PINK)  # by place


def figures_of(one: RowFigures) -> dict[str, float]:
    """Returns the speed-ups of a row that are known, by name."""
    found = {"published": one.row.published.speedup}
    found |= {f"predicted, {x}, {GIVEN}": place.given for x, place in one.places.items()}
    found[f"predicted, {HERE}, {RECORDED}"] = one.at(HERE).recorded
    found["measured"] = one.measured.get("speedup")
    return {name: speedup for name, speedup in found.items() if speedup is not None}


def of_rows(rows: Sequence[RowFigures]) -> Figure:
    """Returns a line for each row, with its speed-ups."""
    figure = figures.blank(1.2 + figures.ROW * 1.3 * len(rows))
    axes = figure.subplots()
    names = dict.fromkeys(name for one in rows for name in figures_of(one))
    predicted = [name for name in names if name not in ("published", "measured")]
    colours = dict(zip(predicted, itertools.cycle(PREDICTED), strict=False))
    for place, one in enumerate(rows):
        for name, speedup in figures_of(one).items():
            if name == "published":
                axes.plot(speedup, place, "D", color=GREY, label=name)
            elif name == "measured":
                ends = (one.measured.get(end, speedup) for end in ("low", "high"))
                ends = [[abs(end - speedup)] for end in ends]
                axes.errorbar(speedup, place, xerr=ends, fmt="s", color=BLUE, capsize=3, label=name)
            else:
                colour = colours[name]
                axes.plot(speedup, place, "o", color=colour, fillstyle="none", label=name)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), list(map(_name, rows)))
    axes.set_ylim(len(rows) - 0.5, -0.5)  # from top to bottom
    axes.set_xlabel("times as fast as the target alone")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=2)
    return figure


def _name(one: RowFigures) -> str:
    return " ".join((one.row.name, *(one.marks if one.measured else ())))


def draw(
    rows: Sequence[RowFigures], runs: Sequence[ReportedRun], folder: Path
) -> tuple[dict[str, str], list[Mapping[str, object]]]:
    """Writes all figures below a folder."""
    known = {_name(one): found for one in rows if (found := figures_of(one))}
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
    said = [
        f"{name}: {'; '.join(f'{what} {x:.2f}' for what, x in found.items())}"
        for name, found in known.items()
    ]
    return paths, [{"name": "rows", "title": TITLE, "svg": svg, "words": said}]
