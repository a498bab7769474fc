"""Writes the page of a study in Markdown, HTML, LaTeX and JSON."""

from __future__ import annotations

import collections
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from specdec.common.environment import Environment, device_in_words
from specdec.common.notebook import markdown
from specdec.common.records import as_json, write
from specdec.common.tables import PageTable, escaped
from specdec.report import summaries
from specdec.report.replicate import study_tables
from specdec.report.replicate.results import Bench, Earlier, RowFigures, depth_or_width, load
from specdec.report.replicate.study import Study

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
    """The content of a study's page."""

    title: str
    about: str  # a text about the study
    facts: Mapping[str, Sequence[str]]  # "machine", "date" or "versions" -> different values
    tables: Sequence[PageTable]
    notes: Sequence[str]  # sentences about the figures in tables
    figures: Mapping[str, str]  # title -> path of a PNG file
    commands: Mapping[str, Sequence[str]]  # row -> command lines

    def markdown(self) -> Iterator[str]:
        """Yields the paragraphs of page.md; some may be empty."""
        yield from (f"# {markdown(self.title)}", markdown(self.about))
        facts = (f"{name}: {'; '.join(values)}" for name, values in self.facts.items())
        yield "\n".join(f"- {markdown(fact)}" for fact in facts)
        for table in self.tables:
            yield from (f"## {markdown(table.caption)}", table.markdown())
            yield markdown(table.legend)
        yield "\n".join(f"- {markdown(line)}" for line in self.notes)
        yield from (f"![{markdown(title)}]({path})" for title, path in self.figures.items())
        for name, lines in self.commands.items():
            longest = max(map(len, re.findall("`+", "".join(lines))), default=0)
            fence = "`" * max(3, longest + 1)
            yield from (f"## Commands of {name}", "\n".join((f"{fence}bash", *lines, fence)))

    def latex(self) -> Iterator[str]:
        """Yields the lines of page.tex within the document environment."""
        yield from (rf"\section*{{{escaped(self.title)}}}", escaped(self.about))
        for name, values in self.facts.items():
            yield rf"\par {escaped(f'{name}: ' + '; '.join(values))}"
        for table in self.tables:
            yield from (rf"\subsection*{{{escaped(table.caption)}}}", table.latex())
            yield rf"\par\smallskip\noindent {escaped(table.legend)}"
        yield from (rf"\par\noindent {escaped(line)}" for line in self.notes)
        for title, path in self.figures.items():
            yield rf"\begin{{figure}}[p]\centering\includegraphics[width=0.7\linewidth]{{{path}}}"
            yield rf"\caption{{{escaped(title)}}}\end{{figure}}"
        yield r"\begin{flushleft}\footnotesize\ttfamily"
        yield from (rf"{escaped(x)}\par" for lines in self.commands.values() for x in lines)
        yield r"\end{flushleft}"


def write_all(
    study: Study, rows: Sequence[RowFigures], folder: Path, earlier: Earlier | None
) -> list[str]:
    """Writes the page to a folder, and returns the names of its files.

    page.html and the figures are left out if jinja2 or matplotlib is missing."""
    shown = study_tables.all_of(rows)
    if earlier is not None:
        shown.insert(1, study_tables.compared(rows, earlier))
    commands = {
        figures.row.name: [shlex.join(["specdec", *step.argv]) for step in figures.steps]
        for figures in rows
        if figures.steps
    }
    notes, where = list(depth_or_width(rows)), facts(rows, folder)
    page = Page(study.title, study.about, where, shown, notes, {}, commands)
    page, html = _with_figures(page, rows, folder)
    json = {"study": study.name, "facts": where, "rows": [figures.record() for figures in rows]}
    write(folder / "page.json", f"{as_json(json, indent=1)}\n")
    write(folder / "page.md", "\n\n".join(filter(None, page.markdown())) + "\n")
    write(folder / "page.tex", DOCUMENT % "\n".join(page.latex()))
    return ["page.md", *html, "page.tex", "page.json"]


def facts(rows: Sequence[RowFigures], folder: Path) -> dict[str, list[str]]:
    """Returns "machine", "date", "versions" -> different values over the benchmarks in a folder."""
    files = (f"{folder / figures.row.name}.jsonl.summary.json" for figures in rows)
    by_name: dict[str, list[str]] = collections.defaultdict(list)
    for bench in filter(None, (load(file, Bench) for file in files)):
        environment = cast(Environment, bench["environment"])
        versions = environment["versions"].items()
        by_name["machine"].append(device_in_words(environment))
        by_name["date"].append(environment["date"])
        by_name["versions"].append(", ".join(f"{name} {version}" for name, version in versions))
    return {name: list(dict.fromkeys(values)) for name, values in by_name.items()}


def _with_figures(page: Page, rows: Sequence[RowFigures], folder: Path) -> tuple[Page, list[str]]:
    """Writes the figures and page.html; returns the page with figures, and ["page.html"].

    Returns the page unchanged and [] if jinja2 or matplotlib is missing."""
    try:
        from specdec.report import html
        from specdec.report.replicate import figure
    except ImportError:  # of jinja2 or matplotlib
        return page, []
    # Figures do not show beam searches.
    names = [figures.row.name for figures in rows if "low" in figures.measured]
    runs = summaries.read(f"{folder / name}.jsonl.summary.json" for name in names)
    paths, row_figures = figure.draw(rows, runs, folder)
    page = page._replace(figures=paths)
    figures = [*row_figures, *html.figures_of(runs)]
    content = {"tables": page.tables, "figures": figures, "commands": page.commands}
    facts = {"about": [page.about], **page.facts}
    about = {"title": page.title, "facts": facts, "conditions": [*page.notes], "left_out": 0}
    write(folder / "page.html", html.rendered(content, **about))
    return page, ["page.html"]
