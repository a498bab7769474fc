"""Tables of text, in Markdown and in LaTeX. Pages in HTML show the same records by a template."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from specdec.common import notebook

T = TypeVar("T")
WIDE = 4  # columns from which a LaTeX table is made as wide as its page
SPECIAL = re.compile(r"[\\{}$&#^_%~<>|]")
LATEX = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": r"\textless{}"}
LATEX |= {">": r"\textgreater{}", "|": r"\textbar{}"}


class PageTable(NamedTuple):
    """A table of a page; its cells are texts, or other values that pages format."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    legend: str = ""

    @classmethod
    def of(
        cls,
        caption: str,
        records: Iterable[T],
        columns: Mapping[str, Callable[[T], object]],
        legend: str = "",
    ) -> PageTable:
        """Makes a row of each record; `columns` maps a heading to the function of its cells."""
        rows = [[cell(record) for cell in columns.values()] for record in records]
        return cls(caption, list(columns), rows, legend)

    def filled(self) -> PageTable:
        """Drops empty columns, and rows whose cells are empty except for the first."""
        places = range(len(self.header))
        filled = [x for x in places if not x or any(row[x] for row in self.rows)]
        rows = [[row[x] for x in filled] for row in self.rows if any(row[1:])]
        return self._replace(header=[self.header[x] for x in filled], rows=rows)

    def markdown(self, align: str = "") -> str:
        """Returns the table in Markdown; `align` has an r for each column of numbers."""
        marks = ("---:" if x == "r" else "---" for x in align.ljust(len(self.header)))
        return "\n".join((row(*self.header), f"|{'|'.join(marks)}|", *(row(*x) for x in self.rows)))

    def latex(self) -> str:
        """Returns the table in LaTeX, as wide as the page if it has many columns."""
        lines = (map(escaped, map(str, row)) for row in (self.header, *self.rows))
        head, *body = (" & ".join(line) + r" \\" for line in lines)
        others = len(self.header) - 1
        wide = others >= WIDE
        # A narrow table has columns in which words wrap.
        column = "l" if wide else rf"p{{{0.8 / max(1, others):.2f}\linewidth}}"
        begin = rf"\begin{{tabular}}{{l{column * others}}}"
        text = "\n".join((begin, head, r"\hline", *body, r"\end{tabular}"))
        return r"\noindent" + (rf"\resizebox{{\linewidth}}{{!}}{{{text}}}" if wide else f" {text}")


def row(*cells: object) -> str:
    """Returns cells as a row of a Markdown table."""
    shown = (notebook.markdown(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(shown)} |"


def columns(rows: Iterable[Sequence[object]], *formats: str) -> Iterator[str]:
    """Yields each row as a line of text; `formats` is one per column, of which the last repeats."""
    for cells in rows:
        forms = itertools.chain(formats, itertools.repeat(formats[-1]))
        yield "".join(map(format, cells, forms)).rstrip()


def number(value: float | None, form: str = ".3f") -> str:
    """Returns a number as text, '' for None."""
    return "" if value is None else format(value, form)


def escaped(text: str) -> str:
    """Returns a text whose characters have no special meaning in LaTeX."""
    return SPECIAL.sub(lambda match: LATEX.get(match[0], f"\\{match[0]}"), text)
