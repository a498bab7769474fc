"""The tables of a study's page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from specdec.common.tables import PageTable
from specdec.predict.hardware import GIB
from specdec.report.replicate.results import HERE, Earlier, RowFigures

FROM_SHAPES = "Memory from shapes is that of parameters and caches, without temporaries and code."
LENIENCES = (1.0, 0.5, 0.3, 0.1)
COMPARED = ("speedup", "alpha", "tokens_per_call", "cost_ratio", "target", "run")
GIVEN, RECORDED = "given acceptance", "recorded texts"

Cell: TypeAlias = Callable[[RowFigures], str]


def all_of(rows: Sequence[RowFigures]) -> list[PageTable]:
    """Returns the tables that have figures."""
    made = speed(rows), quality(rows), alphas(rows), memory(rows), drafts(rows), missing(rows)
    return [table for table in made if table.rows]


def speed(rows: Sequence[RowFigures]) -> PageTable:
    """Returns published, predicted and measured speed-ups."""
    places = topologies(rows)
    columns: dict[str, Cell] = {
        "published prediction": lambda one: number(one.row.published.predicted, ".1f"),
        "published": lambda one: number(one.row.published.speedup, ".2g"),
    }
    for where in places:
        columns[f"predicted, {where}, {GIVEN}"] = at(where, "given")
    for where in (*places, HERE):
        columns[f"predicted, {where}, {RECORDED}"] = _marked(at(where, "recorded"))
    columns["measured (95 %)"] = _marked(_interval)
    columns["measured / predicted"] = _marked(lambda one: number(one.over_predicted()))
    columns["failed"] = RowFigures.failed
    legend = (
        "Times as fast as the target alone, for whole texts. Predictions for a topology are a "
        "roofline with a time for each layer, without prefill. Predictions from recorded texts "
        "replay what the target wrote; here they have the measured costs of this device's calls. "
        "Measured / predicted is per token."
    )
    return of_rows("Speed-up", rows, columns, legend)


def quality(rows: Sequence[RowFigures]) -> PageTable:
    """Returns acceptance, costs and texts."""

    def published(name: str, one: RowFigures) -> str:
        return number(getattr(one.row.published, name))

    columns: dict[str, Cell] = {}
    names = {"alpha": "alpha", "tokens_per_call": "tokens per call", "cost_ratio": "c"}
    for name, words in names.items():
        columns[f"{words}, published"] = functools.partial(published, name)
        columns[words] = _marked(_measured(name, ".3f"))
    columns |= {
        "metric": lambda one: one.metric,
        "target alone": _marked(_measured("target")),
        "this run": _marked(_measured("run")),
        "the target's own texts": _marked(lambda one: one.identical),
    }
    legend = (
        "Alpha is teacher-forced where texts were recorded. c is the time of a draft token over "
        "that of the target's step."
    )
    return of_rows("Acceptance, costs and texts", rows, columns, legend)


def alphas(rows: Sequence[RowFigures]) -> PageTable:
    """Returns acceptance rates by lenience, next to the published ones."""
    header = ["row", "drafter"]
    for lenience in LENIENCES:
        header += [f"l = {lenience:g}, published", f"l = {lenience:g}"]

    def lines() -> Iterator[list[str]]:
        for one in rows:
            published = {"model": [one.row.published.alpha], **one.row.alphas}
            for drafter in dict.fromkeys([*one.row.alphas, *one.alphas]):
                cells = [one.row.name, drafter]
                for place in range(len(LENIENCES)):
                    cells.append(number(_item(published.get(drafter, ()), place)))
                    here = number(_item(one.alphas.get(drafter, ()), place), ".3f")
                    cells.append(one.marked(here))
                yield cells

    legend = "Alpha by lenience l: the mean of sum min(p/l, q). l = 1 is exact."
    return PageTable("Acceptance by lenience", header, list(lines()), legend).filled()


def memory(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the memory of one device of each topology."""
    columns = {where: functools.partial(memory_at, where) for where in topologies(rows)}
    return of_rows("Memory of one device", rows, columns, FROM_SHAPES)


def memory_at(where: str, one: RowFigures) -> str:
    """Returns a row's memory on one device of a topology, in words."""
    place = one.at(where)
    if not place.limit:
        return ""
    more, said = place.memory - place.limit, f" ({place.said})" if place.said else ""
    fits = f", {more / GIB:.1f} too much" if more > 0 else ""
    return f"{place.memory / GIB:.1f} of {place.limit / GIB:.1f} GiB{fits}{said}"


def drafts(rows: Sequence[RowFigures]) -> PageTable:
    """Returns the sizes of drafts, and what they cost on each topology."""
    columns: dict[str, Cell] = {
        "layers": lambda one: str(one.layers or ""),
        "parameters": lambda one: f"{one.parameters / 1e6:,.0f}M" if one.layers else "",
    }
    for where in topologies(rows):
        columns[f"c, {where}"] = at(where, "cost_ratio", ".3f")
        columns[f"pays from, {where}"] = at(where, "pays_from")
    legend = (
        "c is the predicted time of a draft token over that of the target's step. Speculation pays "
        "from these tokens per call."
    )
    return of_rows("Drafts", rows, columns, legend)


def missing(rows: Sequence[RowFigures]) -> PageTable:
    """Returns what rows lack."""
    column = {"for a measurement with the paper's models": lambda one: "; ".join(one.missing)}
    return of_rows("Missing", rows, column)


def compared(rows: Sequence[RowFigures], earlier: Earlier) -> PageTable:
    """Returns the measured figures next to those of an earlier page."""

    def then(name: str, one: RowFigures) -> str:
        before = earlier.rows.get(one.row.name, {"measured": {}, "marks": []})
        figure = number(before["measured"].get(name), ".3g")
        return " ".join([figure, *before["marks"]]) if figure else ""

    columns: dict[str, Cell] = {}
    for name in COMPARED:
        words = name.replace("_", " ")
        columns[f"{words}, then"] = functools.partial(then, name)
        columns[f"{words}, now"] = _marked(_measured(name, ".3g"))
    return of_rows(f"Next to {earlier.folder}", rows, columns)


def topologies(rows: Iterable[RowFigures]) -> list[str]:
    """Returns the topologies that rows have figures of."""
    return list(dict.fromkeys(name for one in rows for name in one.places if name != HERE))


def of_rows(
    caption: str, rows: Sequence[RowFigures], columns: Mapping[str, Cell], legend: str = ""
) -> PageTable:
    """Returns a table with a line for each row, without what is empty."""
    lines = [[one.row.name, *(cell(one) for cell in columns.values())] for one in rows]
    return PageTable(caption, ["row", *columns], lines, legend).filled()


def number(value: float | None, form: str = ".2f") -> str:
    """Returns a number as text, '' for None."""
    return "" if value is None else format(value, form)


def at(where: str, name: str, form: str = ".2f") -> Cell:
    """Returns what makes the cell with a figure of a place."""
    return lambda one: number(getattr(one.at(where), name), form)


def _measured(name: str, form: str = ".2f") -> Cell:
    return lambda one: number(one.measured.get(name), form)


def _marked(cell: Cell) -> Cell:
    return lambda one: one.marked(cell(one))


def _interval(one: RowFigures) -> str:
    speedup, low, high = (one.measured.get(name) for name in ("speedup", "low", "high"))
    return number(speedup) + ("" if low is None else f" ({low:.2f} to {high:.2f})")


def _item(values: Sequence[float], place: int) -> float | None:
    return values[place] if place < len(values) else None
