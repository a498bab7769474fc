"""The page of a study in Markdown, HTML and LaTeX, which says the same for the same results."""

from __future__ import annotations

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
    """The content of a page."""

    # title, about: of the study
    title: str
    about: str
    facts: Mapping[str, Sequence[str]]  # machines, dates and versions of all measurements
    tables: Sequence[PageTable]
    notes: Sequence[str]  # sentences that follow from them
    figures: Mapping[str, str]  # paths of drawings, by title
    commands: Mapping[str, Sequence[str]]  # command lines, by row

    def markdown(self) -> Iterator[str]:
        """Yields the paragraphs of page.md."""
        yield from (f"# {markdown(self.title)}", markdown(self.about))
        facts = (f"{name}: {'; '.join(values)}" for name, values in self.facts.items())
        yield "\n".join(f"- {markdown(fact)}" for fact in facts)
        for one in self.tables:
            yield from (f"## {markdown(one.caption)}", one.markdown())
            yield markdown(one.legend)
        yield "\n".join(f"- {markdown(line)}" for line in self.notes)
        yield from (f"![{markdown(title)}]({path})" for title, path in self.figures.items())
        for name, lines in self.commands.items():
            fence = "`" * max(
                3, *(len(run) + 1 for run in re.findall("`+", "".join(lines)) or [""])
            )
            yield from (f"## Commands of {name}", "\n".join((f"{fence}bash", *lines, fence)))

    def latex(self) -> Iterator[str]:
        """Yields the lines of the document in page.tex."""
        yield from (rf"\section*{{{escaped(self.title)}}}", escaped(self.about))
        for name, values in self.facts.items():
            yield rf"\par {escaped(f'{name}: ' + '; '.join(values))}"
        for one in self.tables:
            yield from (rf"\subsection*{{{escaped(one.caption)}}}", one.latex())
            yield rf"\par\smallskip\noindent {escaped(one.legend)}"
        yield from (rf"\par\noindent {escaped(line)}" for line in self.notes)
        for title, path in self.figures.items():
            yield rf"\begin{{figure}}[p]\centering\includegraphics[width=0.7\linewidth]{{{path}}}"
            yield rf"\caption{{{escaped(title)}}}\end{{figure}}"
        yield r"\begin{flushleft}\footnotesize\ttfamily"
        yield from (rf"{escaped(x)}\par" for lines in self.commands.values() for x in lines)
        yield r"\end{flushleft}"


def write_all(
    study: Study, rows: Sequence[RowFigures], folder: Path, earlier: Earlier | None
) -> None:
    """Writes page.json, page.md and page.tex; page.html and figures need jinja2 and matplotlib."""
    shown = study_tables.all_of(rows)
    if earlier is not None:
        shown.insert(1, study_tables.compared(rows, earlier))
    commands = {
        one.row.name: [shlex.join(["specdec", *step.argv]) for step in one.steps]
        for one in rows
        if one.steps
    }
    notes, where = list(depth_or_width(rows)), facts(rows, folder)
    page = Page(study.title, study.about, where, shown, notes, {}, commands)
    page = _with_figures(page, rows, folder)
    json = {"study": study.name, "facts": where, "rows": [one.record() for one in rows]}
    write(folder / "page.json", f"{as_json(json, indent=1)}\n")
    write(folder / "page.md", "\n\n".join(filter(None, page.markdown())) + "\n")
    write(folder / "page.tex", DOCUMENT % "\n".join(page.latex()))


def facts(rows: Sequence[RowFigures], folder: Path) -> dict[str, list[str]]:
    """Returns the machines, dates and versions of all benchmarks."""
    files = (f"{folder / one.row.name}.jsonl.summary.json" for one in rows)
    found: dict[str, dict[str, None]] = {}
    benches = (bench for file in files if (bench := load(file, Bench)))
    for place in (cast(Environment, bench["environment"]) for bench in benches):
        versions = ", ".join(f"{name} {one}" for name, one in place["versions"].items())
        one = {
            "machine": device_in_words(place),
            "date": place["date"],
            "versions": versions,
        }
        for name, value in one.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _with_figures(page: Page, rows: Sequence[RowFigures], folder: Path) -> Page:
    """Draws the figures and writes page.html; returns the page with the paths of the figures."""
    try:
        from specdec.report import html
        from specdec.report.replicate import figure
    except ImportError:  # of jinja2 or matplotlib
        return page
    names = [one.row.name for one in rows if "low" in one.measured]  # a beam search is in no figure
    runs = summaries.read(f"{folder / name}.jsonl.summary.json" for name in names)
    paths, own = figure.draw(rows, runs, folder)
    page = page._replace(figures=paths)
    about = {"about": [page.about], **page.facts}
    made = html.study(page.title, about, page.tables, own, runs, page.notes, page.commands)
    write(folder / "page.html", made)
    return page
