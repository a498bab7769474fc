"""The tables of a study's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specdec.common.values import UsageError
from specdec.instrument.compile.hardware import GIB
from specdec.instrument.replicate.results import PAPER, RECORDED, Chip, Found, load
from specdec.instrument.replicate.steps import HERE, NOT_EXACT

LENIENCES = (1.0, 0.5, 0.3, 0.1)
COMPARED = ("speedup", "alpha", "tokens_per_call", "cost_ratio", "target", "run")


class Table(NamedTuple):
    """A table of strings."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    legend: str = ""

    def filled(self) -> Table:
        """Returns the table without empty columns, and without rows that only have a name."""
        kept = [x for x in range(len(self.header)) if not x or any(row[x] for row in self.rows)]
        rows = [[row[x] for x in kept] for row in self.rows if any(row[1:])]
        return self._replace(header=[self.header[x] for x in kept], rows=rows)


def all_of(rows: Sequence[Found]) -> list[Table]:
    """Returns the tables that have figures."""
    made = speed(rows), quality(rows), alphas(rows), memory(rows), drafts(rows), missing(rows)
    return [table for table in (one.filled() for one in made) if table.rows]


def speed(rows: Sequence[Found]) -> Table:
    """Returns published, predicted and measured speed-ups."""
    places = _topologies(rows)
    header = ["row", "published prediction", "published"]
    header += [f"predicted, {where}, {PAPER}" for where in places]
    header += [f"predicted, {where}, {RECORDED}" for where in (*places, HERE)]
    header += ["measured (95 %)", "measured / predicted", "failed"]

    def cells(one: Found) -> Iterator[str]:
        yield one.row.name
        yield _number(one.row.published.get("predicted"), ".1f")
        yield _number(one.row.published.get("speedup"), ".2g")
        for where in places:
            yield _number(one.speedup(where, PAPER))
        for where in (*places, HERE):
            yield _marked(one, _number(one.speedup(where, RECORDED)))
        yield _marked(one, _interval(one.measured))
        yield _marked(one, _number(one.over_predicted()))
        yield "; ".join(f"{step}: {said}" for step, said in one.failures.items())

    legend = (
        "Times as fast as the target alone, for whole texts. Predictions for a topology are a "
        "roofline with a time for each layer, without prefill. Predictions from recorded texts "
        "replay what the target wrote; here they have the measured costs of this device's calls. "
        "Measured / predicted is per token."
    )
    return Table("Speed-up", header, [list(cells(one)) for one in rows], legend)


def quality(rows: Sequence[Found]) -> Table:
    """Returns acceptance, costs and texts."""
    header = ["row", "alpha, published", "alpha", "tokens per call, published", "tokens per call"]
    header += ["c, published", "c", "metric", "target alone", "this run", "the target's own texts"]

    def cells(one: Found) -> Iterator[str]:
        published, measured = one.row.published, one.measured
        yield one.row.name
        for name in ("alpha", "tokens_per_call", "cost_ratio"):
            yield _number(published.get(name))
            yield _marked(one, _number(measured.get(name), ".3f"))
        yield one.metric
        yield _marked(one, _number(measured.get("target")))
        yield _marked(one, _number(measured.get("run")))
        yield _marked(one, one.identical)

    legend = (
        "Alpha is teacher-forced where texts were recorded. c is the time of a draft token over "
        "that of the target's step."
    )
    return Table("Acceptance, costs and texts", header, [list(cells(x)) for x in rows], legend)


def alphas(rows: Sequence[Found]) -> Table:
    """Returns acceptance rates by lenience, next to the published ones."""
    header = ["row", "drafter"]
    for lenience in LENIENCES:
        header += [f"l = {lenience:g}, published", f"l = {lenience:g}"]

    def lines() -> Iterator[list[str]]:
        for one in rows:
            for drafter in dict.fromkeys([*one.row.alphas, *one.alphas]):
                published = one.row.alphas.get(drafter, ())
                if (
                    drafter == "model"
                    and not published
                    and (alpha := one.row.published.get("alpha"))
                ):
                    published = (alpha,)
                cells = [one.row.name, drafter]
                for place in range(len(LENIENCES)):
                    cells.append(_number(_at(published, place)))
                    here = _at(one.alphas.get(drafter, ()), place)
                    cells.append(_marked(one, _number(here, ".3f")))
                yield cells

    legend = "Alpha by lenience l: the mean of sum min(p/l, q). l = 1 is exact."
    return Table("Acceptance by lenience", header, list(lines()), legend)


def memory(rows: Sequence[Found]) -> Table:
    """Returns the memory of one device of each topology."""
    places = _topologies(rows)
    lines = [[one.row.name, *(memory_of(one.chips.get(where)) for where in places)] for one in rows]
    return Table("Memory of one device", ["row", *places], lines)


def memory_of(chip: Chip | None) -> str:
    """Returns a cell with the memory of a device."""
    if chip is None:
        return ""
    if chip.memory is None:
        return f"does not fit in {chip.limit / GIB:.1f} GiB: {chip.said}"
    fits = "" if chip.memory <= chip.limit else ", does not fit"
    said = f" ({chip.said})" if chip.said else ""
    return f"{chip.memory / GIB:.1f} of {chip.limit / GIB:.1f} GiB{fits}{said}"


def drafts(rows: Sequence[Found]) -> Table:
    """Returns the sizes of drafts, and what they cost on each topology."""
    places, header = _topologies(rows), ["row", "layers", "parameters"]
    for where in places:
        header += [f"c, {where}", f"pays from, {where}"]

    def cells(one: Found) -> Iterator[str]:
        yield one.row.name
        yield str(one.draft.layers) if one.draft and places else ""
        yield f"{one.draft.parameters / 1e6:,.0f}M" if one.draft and places else ""
        for where in places:
            chip = one.chips.get(where)
            yield _number(chip and chip.cost_ratio, ".3f")
            yield _number(chip and chip.pays_from)

    legend = (
        "c is the predicted time of a draft token over that of the target's step. Speculation pays "
        "from these tokens per call."
    )
    return Table("Drafts", header, [list(cells(one)) for one in rows], legend)


def missing(rows: Sequence[Found]) -> Table:
    """Returns what rows lack."""
    lines = [[one.row.name, "; ".join(one.work.missing)] for one in rows]
    return Table("Missing", ["row", "for a measurement with the paper's models"], lines)


def compared(rows: Sequence[Found], folder: Path) -> Table:
    """Returns the measured figures next to those of an earlier page.

    Raises:
      UsageError: the folder has no page.
    """
    before = load(folder / "page.json")
    if before is None:
        raise UsageError(f"--compare {folder} has no page.json; give a folder of specdec replicate")
    earlier = {one["row"]: one for one in before["rows"]}
    header, lines = ["row"], []
    for name in COMPARED:
        words = name.replace("_", " ")
        header += [f"{words}, then", f"{words}, now"]
    for one in rows:
        then = earlier.get(one.row.name, {"measured": {}, "marks": []})
        marks = [mark for mark in then["marks"] if mark not in one.work.marks]
        cells = [one.row.name]
        for name in COMPARED:
            old = _number(then["measured"].get(name), ".3g")
            cells += [_with(old, marks or then["marks"])]
            cells += [_marked(one, _number(one.measured.get(name), ".3g"))]
        lines.append(cells)
    return Table(f"Next to {folder}", header, lines).filled()


def markdown(table: Table) -> str:
    """Returns a table as Markdown."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)


def _topologies(rows: Iterable[Found]) -> list[str]:
    return list(dict.fromkeys(name for one in rows for name in one.chips))


def _at(values: Sequence[float], place: int) -> float | None:
    return values[place] if place < len(values) else None


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _interval(measured: Mapping[str, float]) -> str:
    if "speedup" not in measured:
        return ""
    text = f"{measured['speedup']:.2f}"
    if "low" in measured:
        text += f" ({measured['low']:.2f} to {measured['high']:.2f})"
    return text


def _marked(one: Found, text: str) -> str:
    """Returns a measured figure with all that keeps it from being the paper's."""
    inexact = () if one.exact or NOT_EXACT in one.work.marks else (NOT_EXACT,)
    return _with(text, (*one.work.marks, *inexact))


def _with(text: str, marks: Iterable[str]) -> str:
    return " ".join((text, *marks)) if text else ""
