"""The figures of a study: its rows, published, predicted and measured, and those of `report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from specdec.instrument.replicate.results import HERE, Found
from specdec.instrument.replicate.study_tables import GIVEN, RECORDED
from specdec.instrument.report import canvas, figures, words
from specdec.instrument.report.canvas import BLUE, DPI, GREEN, GREY, ORANGE, PINK, STYLE
from specdec.instrument.report.speedups import predicts
from specdec.instrument.report.summaries import ReportedRun

TITLE = "Rows: published, predicted and measured"
PREDICTED = (ORANGE, GREEN, PINK)  # by place


def of_rows(rows: Sequence[Found]) -> Figure:
    """Returns a line for each row, with its speed-ups."""
    figure = canvas.blank(1.2 + canvas.ROW * 1.3 * len(rows))
    axes = figure.subplots()
    for place, one in enumerate(rows):
        if (published := one.row.published.speedup) is not None:
            axes.plot(published, place, "D", color=GREY, label="published")
        for number, (name, speedup) in enumerate(_predicted(one).items()):
            colour = PREDICTED[number % len(PREDICTED)]
            axes.plot(speedup, place, "o", color=colour, fillstyle="none", label=name)
        if (measured := one.measured.get("speedup")) is not None:
            low, high = (one.measured.get(name, measured) for name in ("low", "high"))
            spread = [[measured - low], [high - measured]]
            axes.errorbar(
                measured, place, xerr=spread, fmt="s", color=BLUE, capsize=3, label="measured"
            )
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [" ".join(_name(one)) for one in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # from top to bottom
    axes.set_xlabel("times as fast as the target alone")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=2)
    return figure


def _predicted(one: Found) -> dict[str, float]:
    """Returns the predictions of a row by name: those of topologies, and that for this device."""
    found = {f"predicted, {x}, {GIVEN}": place.given for x, place in one.places.items()}
    found[f"predicted, {HERE}, {RECORDED}"] = one.at(HERE).recorded
    return {name: speedup for name, speedup in found.items() if speedup is not None}


def _name(one: Found) -> tuple[str, ...]:
    return one.row.name, *(one.marks if one.measured else ())


def in_words(rows: Sequence[Found]) -> Iterator[str]:
    """Yields the figure of rows, row by row."""
    for one in rows:
        figures = {"published": one.row.published.speedup, **_predicted(one)}
        figures["measured"] = one.measured.get("speedup")
        known = [f"{name} {x:.2f}" for name, x in figures.items() if x is not None]
        if known:
            yield f"{' '.join(_name(one))}: {'; '.join(known)}"


def draw(rows: Sequence[Found], runs: Sequence[ReportedRun], folder: Path) -> dict[str, str]:
    """Writes all figures below a folder; returns their paths in the folder, by title."""
    if not any(in_words(rows)):
        return {}
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        of_rows(rows).savefig(target / "rows.png", dpi=DPI, metadata={"Software": None})
    found = {TITLE: "figures/rows.png"}
    if any(map(predicts, runs)):
        for path in figures.draw(runs, target):
            found[words.OF[path.stem][0]] = f"figures/{path.name}"
    return found


def in_page(rows: Sequence[Found]) -> Mapping[str, object]:
    """Returns the figure of rows for a page, see `report.html`."""
    with matplotlib.rc_context(STYLE):
        svg = figures.element(of_rows(rows), "rows")
    return {"name": "rows", "title": TITLE, "svg": svg, "words": list(in_words(rows))}
