"""Tables of text, in Markdown and in LaTeX. Pages in HTML show the same records by a template."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from specdec.common import notebook

WIDE = 4  # columns from which a LaTeX table is made as wide as its page
SPECIAL = re.compile(r"[\\{}$&#^_%~<>|]")
LATEX = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": r"\textless{}"}
LATEX |= {">": r"\textgreater{}", "|": r"\textbar{}"}


class PageTable(NamedTuple):
    """A table of a page, whose cells are texts, or what a page shows otherwise."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    legend: str = ""

    def filled(self) -> PageTable:
        """Returns the table without empty columns, and without rows that only have a name."""
        kept = [x for x in range(len(self.header)) if not x or any(row[x] for row in self.rows)]
        rows = [[row[x] for x in kept] for row in self.rows if any(row[1:])]
        return self._replace(header=[self.header[x] for x in kept], rows=rows)

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
    """Returns a row of a table in Markdown."""
    shown = (notebook.markdown(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(shown)} |"


def columns(rows: Iterable[Sequence[object]], *formats: str) -> Iterator[str]:
    """Yields rows as lines of text, each cell in the format of its column; the last one repeats."""
    for cells in rows:
        forms = itertools.chain(formats, itertools.repeat(formats[-1]))
        yield "".join(map(format, cells, forms)).rstrip()


def escaped(text: str) -> str:
    """Returns a text in which LaTeX reads each character as itself."""
    return SPECIAL.sub(lambda found: LATEX.get(found[0], f"\\{found[0]}"), text)
