"""The page of a study in Markdown, HTML and LaTeX, which says the same for the same results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specdec.common.environment import device_in_words
from specdec.common.records import as_json, write
from specdec.instrument import report
from specdec.instrument.replicate import study_tables
from specdec.instrument.replicate.results import Found, depth_or_width, load
from specdec.instrument.replicate.study import Study
from specdec.instrument.replicate.study_tables import Table
from specdec.instrument.report import ReportedRun

WIDE = 4  # columns from which a LaTeX table is made as wide as its page
SPECIAL = re.compile(r"[\\{}$&#^_%~<>|]")
LATEX = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": r"\textless{}"}
LATEX |= {">": r"\textgreater{}", "|": r"\textbar{}"}
DOCUMENT = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{graphicx}
\begin{document}
%s
\end{document}
"""


class Page(NamedTuple):
    """The content of a page.

    Attributes:
      study: the study.
      tables: its tables.
      notes: sentences that follow from them.
      facts: machines, dates and versions of all measurements.
      figures: paths of drawings, by title.
      commands: command lines, by row.
    """

    study: Study
    tables: Sequence[Table]
    notes: Sequence[str]
    facts: Mapping[str, Sequence[str]]
    figures: Mapping[str, str]
    commands: Mapping[str, Sequence[str]]

    def markdown(self) -> Iterator[str]:
        """Yields the lines of page.md."""
        yield from (f"# {self.study.title}", "", self.study.about, "")
        yield from (f"- {name}: {'; '.join(values)}" for name, values in self.facts.items())
        for table in self.tables:
            yield from (
                "",
                f"## {table.caption}",
                "",
                study_tables.markdown(table),
                "",
                table.legend,
            )
        yield from ("", *(f"- {line}" for line in self.notes))
        for title, path in self.figures.items():
            yield from ("", f"![{title}]({path})")
        for name, lines in self.commands.items():
            yield from ("", f"## Commands of {name}", "", "```bash", *lines, "```")
        yield ""

    def latex(self) -> Iterator[str]:
        """Yields the lines of the document in page.tex."""
        yield rf"\section*{{{escaped(self.study.title)}}}"
        yield escaped(self.study.about)
        for name, values in self.facts.items():
            yield rf"\par {escaped(f'{name}: ' + '; '.join(values))}"
        for table in self.tables:
            yield rf"\subsection*{{{escaped(table.caption)}}}"
            yield tabular(table)
            yield rf"\par\smallskip\noindent {escaped(table.legend)}"
        yield from (rf"\par\noindent {escaped(line)}" for line in self.notes)
        for title, path in self.figures.items():
            yield r"\begin{figure}[p]\centering"
            yield rf"\includegraphics[width=0.7\linewidth]{{{path}}}"
            yield rf"\caption{{{escaped(title)}}}\end{{figure}}"
        yield r"\begin{flushleft}\footnotesize\ttfamily"
        for lines in self.commands.values():
            yield from (rf"{escaped(line)}\par" for line in lines)
        yield r"\end{flushleft}"


def write_all(study: Study, rows: Sequence[Found], folder: Path, compare: Path | None) -> None:
    """Writes page.json, page.md, page.tex and figures, and page.html if jinja2 is installed.

    Args:
      study: the study.
      rows: its figures.
      folder: gets the files.
      compare: the folder of an earlier page; None for none.
    """
    shown, runs = study_tables.all_of(rows), _runs(rows, folder)
    if compare is not None:
        shown.insert(1, study_tables.compared(rows, compare))
    commands = {one.row.name: one.commands for one in rows if one.commands}
    where, notes = facts(rows, folder), list(depth_or_width(rows))
    page = Page(study, shown, notes, where, _draw(rows, runs, folder), commands)
    json = {"study": study.name, "facts": where, "rows": [one.record() for one in rows]}
    write(folder / "page.json", f"{as_json(json, indent=1)}\n")
    write(folder / "page.md", "\n".join(page.markdown()))
    write(folder / "page.tex", DOCUMENT % "\n".join(page.latex()))
    try:
        from specdec.instrument.report import html
    except ImportError:
        return
    found = [html.HtmlTable(*table) for table in shown]
    own = _in_page(rows) if page.figures else []
    about = {"about": [study.about], **where}
    made = html.study(study.title, about, found, own, runs, notes, commands)
    write(folder / "page.html", made)


def facts(rows: Sequence[Found], folder: Path) -> dict[str, list[str]]:
    """Returns the machines, dates and versions of all benchmarks.

    Args:
      rows: the rows.
      folder: where their files are.
    """
    files = (folder / f"{one.row.name}.jsonl.summary.json" for one in rows)
    places = [report["environment"] for file in files if (report := load(file))]
    found = {
        "machine": [device_in_words(one) for one in places],
        "date": [one["date"] for one in places],
        "versions": [", ".join(f"{k} {v}" for k, v in one["versions"].items()) for one in places],
    }
    return {name: list(dict.fromkeys(values)) for name, values in found.items() if values}


def _runs(rows: Sequence[Found], folder: Path) -> list[ReportedRun]:
    """Returns the benchmarks that figures show; a beam search is in none."""
    names = [one.row.name for one in rows if "low" in one.measured]
    return report.read([f"{folder / name}.jsonl.summary.json" for name in names])


def _draw(rows: Sequence[Found], runs: Sequence[ReportedRun], folder: Path) -> dict[str, str]:
    """Draws all figures as PNG files; returns their paths in the folder by title."""
    try:
        from specdec.instrument.replicate import figure
    except ImportError:  # of matplotlib
        return {}
    return figure.draw(rows, runs, folder)


def _in_page(rows: Sequence[Found]) -> list[Mapping[str, object]]:
    from specdec.instrument.replicate import figure

    return [figure.in_page(rows)]


def tabular(table: Table) -> str:
    """Returns a table as LaTeX, as wide as the page if it has many columns.

    Args:
      table: the table.
    """
    head, *body = (" & ".join(map(escaped, row)) + r" \\" for row in (table.header, *table.rows))
    others = len(table.header) - 1
    wide = others >= WIDE
    column = "l" if wide else rf"p{{{0.8 / max(1, others):.2f}\linewidth}}"  # in which words wrap
    begin = rf"\begin{{tabular}}{{l{column * others}}}"
    made = "\n".join((begin, head, r"\hline", *body, r"\end{tabular}"))
    return rf"\noindent\resizebox{{\linewidth}}{{!}}{{{made}}}" if wide else rf"\noindent {made}"


def escaped(text: str) -> str:
    """Returns a text in which LaTeX reads each character as itself.

    Args:
      text: the text.
    """
    return SPECIAL.sub(lambda found: LATEX.get(found[0], f"\\{found[0]}"), text)
