"""The tables of a study's page."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from specdec.common.tables import PageTable, number
from specdec.predict.hardware import GIB
from specdec.report.replicate.results import HERE, Earlier, RowFigures

FROM_SHAPES = "Memory from shapes counts parameters and caches, without temporaries and code."
LENIENCES = (1.0, 0.5, 0.3, 0.1)
COMPARED = ("speedup", "alpha", "tokens_per_call", "cost_ratio", "target", "run")
GIVEN, RECORDED = "given acceptance", "recorded texts"

Cell: TypeAlias = Callable[[RowFigures], str]


def all_of(rows: Sequence[RowFigures]) -> list[PageTable]:
    """Returns all tables of the page that have rows."""
    tables = speed(rows), quality(rows), alphas(rows), memory(rows), drafts(rows), missing(rows)
    return [table for table in tables if table.rows]


def speed(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of published, predicted and measured speed-ups."""
    places = topologies(rows)
    columns: dict[str, Cell] = {
        "published prediction": lambda figures: number(figures.row.published.predicted, ".1f"),
        "published": lambda figures: number(figures.row.published.speedup, ".2g"),
    }
    for where in places:
        columns[f"predicted, {where}, {GIVEN}"] = at(where, "given")
    for where in (*places, HERE):
        columns[f"predicted, {where}, {RECORDED}"] = _marked(at(where, "recorded"))
    columns["measured (95 %)"] = _marked(_interval)
    columns["measured / predicted"] = _marked(
        lambda figures: number(figures.over_predicted(), ".2f")
    )
    columns["failed"] = RowFigures.failed
    legend = (
        "Times as fast as the target alone, for whole texts. Predictions for a topology use a "
        "roofline with a time for each layer, without prefill. Predictions from recorded texts "
        "replay texts of the target; here they use the measured costs of this device's calls. "
        "Measured / predicted is per token."
    )
    return of_rows("Speed-up", rows, columns, legend)


def quality(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of acceptance, costs and metrics, published and measured."""

    def published(name: str) -> Cell:
        return lambda figures: number(getattr(figures.row.published, name), ".2f")

    columns: dict[str, Cell] = {}
    names = {"alpha": "alpha", "tokens_per_call": "tokens per call", "cost_ratio": "c"}
    for name, words in names.items():
        columns[f"{words}, published"] = published(name)
        columns[words] = _marked(_measured(name, ".3f"))
    columns |= {
        "metric": lambda figures: figures.metric,
        "target alone": _marked(_measured("target")),
        "this run": _marked(_measured("run")),
        "the target's own texts": _marked(lambda figures: figures.identical),
    }
    legend = (
        "Alpha is measured on recorded texts if there are any. c is the time of a draft token / "
        "the time of a step of the target."
    )
    return of_rows("Acceptance, costs and texts", rows, columns, legend)


def alphas(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of published and measured acceptance rates by lenience."""
    header, lines = ["row", "drafter"], []
    for lenience in LENIENCES:
        header += [f"l = {lenience:g}, published", f"l = {lenience:g}"]
    for figures in rows:
        published = {"model": [figures.row.published.alpha], **figures.row.alphas}
        for drafter in dict.fromkeys([*figures.row.alphas, *figures.alphas]):
            both = published.get(drafter, ()), figures.alphas.get(drafter, ())
            cells = [figures.row.name, drafter]
            pairs = itertools.zip_longest(LENIENCES, *both)
            for _, of_paper, here in itertools.islice(pairs, len(LENIENCES)):
                cells += [number(of_paper, ".2f"), figures.marked(number(here))]
            lines.append(cells)
    legend = "Alpha by lenience l: the mean of sum min(p/l, q). l = 1 is exact."
    return PageTable("Acceptance by lenience", header, lines, legend).filled()


def memory(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of the memory that each row needs on one device of each topology."""
    columns = {where: functools.partial(memory_at, where) for where in topologies(rows)}
    return of_rows("Memory of one device", rows, columns, FROM_SHAPES)


def memory_at(where: str, figures: RowFigures) -> str:
    """Returns the memory that a row needs on one device of a topology, in words."""
    on_device = figures.at(where)
    if not on_device.limit:
        return ""
    more, remark = (
        on_device.memory - on_device.limit,
        f" ({on_device.said})" if on_device.said else "",
    )
    fits = f", {more / GIB:.1f} too much" if more > 0 else ""
    return f"{on_device.memory / GIB:.1f} of {on_device.limit / GIB:.1f} GiB{fits}{remark}"


def drafts(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of the sizes of draft models, and of their costs on each topology."""
    columns: dict[str, Cell] = {
        "layers": lambda figures: str(figures.layers or ""),
        "parameters": lambda figures: f"{figures.parameters / 1e6:,.0f}M" if figures.layers else "",
    }
    for where in topologies(rows):
        columns[f"c, {where}"] = at(where, "cost_ratio", ".3f")
        columns[f"pays from, {where}"] = at(where, "pays_from")
    legend = (
        "c is the predicted time of a draft token / the time of a step of the target. Pays from: "
        "the tokens per call from which speculation is faster than the target alone."
    )
    return of_rows("Drafts", rows, columns, legend)


def missing(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the table of the checkpoints and data that rows lack."""
    name = "for a measurement with the paper's models"
    return of_rows("Missing", rows, {name: lambda figures: "; ".join(figures.missing)})


def compared(rows: Sequence[RowFigures], earlier: Earlier) -> PageTable:
    """Returns the table of measured figures of an earlier page (then) and of this one (now)."""

    def then(name: str, figures: RowFigures) -> str:
        before = earlier.rows.get(figures.row.name, {"measured": {}, "marks": []})
        figure = number(before["measured"].get(name), ".3g")
        return " ".join([figure, *before["marks"]]) if figure else ""

    columns: dict[str, Cell] = {}
    for name in COMPARED:
        words = name.replace("_", " ")
        columns[f"{words}, then"] = functools.partial(then, name)
        columns[f"{words}, now"] = _marked(_measured(name, ".3g"))
    return of_rows(f"Next to {earlier.folder}", rows, columns)


def topologies(rows: Iterable[RowFigures]) -> list[str]:
    """Returns the topologies for which any row has predictions."""
    return list(dict.fromkeys(name for figures in rows for name in figures.places if name != HERE))


def of_rows(
    caption: str, rows: Sequence[RowFigures], columns: Mapping[str, Cell], legend: str = ""
) -> PageTable:
    """Returns a table with a line for each row, without empty lines and columns."""
    name: dict[str, Cell] = {"row": lambda figures: figures.row.name}
    return PageTable.of(caption, rows, {**name, **columns}, legend).filled()


def at(where: str, name: str, form: str = ".2f") -> Cell:
    """Returns a function that shows the field `name` of a row's predictions for a place."""
    return lambda figures: number(getattr(figures.at(where), name), form)


def _measured(name: str, form: str = ".2f") -> Cell:
    return lambda figures: number(figures.measured.get(name), form)


def _marked(cell: Cell) -> Cell:
    return lambda figures: figures.marked(cell(figures))


def _interval(figures: RowFigures) -> str:
    speedup, low, high = (figures.measured.get(name) for name in ("speedup", "low", "high"))
    return number(speedup, ".2f") + ("" if low is None else f" ({low:.2f} to {high:.2f})")
