"""The page of a study in Markdown, HTML and LaTeX, which says the same for the same results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdec.common.environment import device_in_words
from specdec.common.records import as_json, write
from specdec.instrument import report
from specdec.instrument.replicate import tables
from specdec.instrument.replicate.results import Found, depth_or_width, load
from specdec.instrument.replicate.study import Study
from specdec.instrument.replicate.tables import Table
from specdec.instrument.report import ReportedRun

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
WIDE = 4  # columns from which a LaTeX table is made as wide as its page


def write_all(study: Study, rows: Sequence[Found], folder: Path, compare: Path | None) -> None:
    """Writes page.json, page.md, page.tex and figures, and page.html if jinja2 is installed.

    Args:
      study: the study.
      rows: its figures.
      folder: gets the files.
      compare: the folder of an earlier page; None for none.
    """
    shown = tables.all_of(rows)
    if compare is not None:
        shown.insert(1, tables.compared(rows, compare))
    runs, said, where = _runs(rows, folder), list(depth_or_width(rows)), facts(rows, folder)
    figures = _draw(rows, runs, folder)
    json = {"study": study.name, "facts": where, "rows": [one.record() for one in rows]}
    write(folder / "page.json", f"{as_json(json, indent=1)}\n")
    commands = {one.row.name: one.commands for one in rows if one.commands}
    text = "\n".join(_markdown(study, shown, said, where, figures, commands))
    write(folder / "page.md", text)
    write(
        folder / "page.tex",
        DOCUMENT % "\n".join(_latex(study, shown, said, where, figures, commands)),
    )
    try:
        from specdec.instrument.report import html
    except ImportError:
        return
    drawn = _svgs(rows, runs) if figures else []
    notes = [study.about, *said]
    found = [html.HtmlTable(x.caption, x.header, x.rows, x.legend) for x in shown]
    made = html.study(study.title, where, found, drawn, notes, commands)
    write(folder / "page.html", made)


def facts(rows: Sequence[Found], folder: Path) -> dict[str, list[str]]:
    """Returns the machines, versions and dates of all measurements."""
    stems = [folder / one.row.name for one in rows]
    files = [Path(f"{stem}{end}") for stem in stems for end in (".jsonl.summary.json",)]
    reports = [report for file in files if (report := load(file))]
    places = [report["environment"] for report in reports]
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


def _svgs(rows: Sequence[Found], runs: Sequence[ReportedRun]) -> list[Mapping[str, object]]:
    from specdec.instrument.replicate import figure

    return figure.in_page(rows, runs)


def _markdown(
    study: Study,
    shown: Sequence[Table],
    said: Sequence[str],
    where: Mapping[str, Sequence[str]],
    figures: Mapping[str, str],
    commands: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    yield from (f"# {study.title}", "", study.about, "")
    yield from (f"- {name}: {'; '.join(values)}" for name, values in where.items())
    for table in shown:
        yield from ("", f"## {table.caption}", "", tables.markdown(table), "")
        if table.legend:
            yield table.legend
    yield from ("", *(f"- {line}" for line in said))
    for title, path in figures.items():
        yield from ("", f"![{title}]({path})")
    if commands:
        yield from ("", "## Commands")
    for name, lines in commands.items():
        yield from ("", f"### {name}", "", "```bash", *lines, "```")
    yield ""


def _latex(
    study: Study,
    shown: Sequence[Table],
    said: Sequence[str],
    where: Mapping[str, Sequence[str]],
    figures: Mapping[str, str],
    commands: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    yield rf"\section*{{{escaped(study.title)}}}"
    yield escaped(study.about)
    for name, values in where.items():
        yield rf"\par {escaped(f'{name}: ' + '; '.join(values))}"
    for table in shown:
        yield rf"\subsection*{{{escaped(table.caption)}}}"
        yield tabular(table)
        yield rf"\par\smallskip\noindent {escaped(table.legend)}"
    yield from (rf"\par\noindent {escaped(line)}" for line in said)
    for title, path in figures.items():
        yield r"\begin{figure}[p]\centering"
        yield rf"\includegraphics[width=0.7\linewidth]{{{path}}}"
        yield rf"\caption{{{escaped(title)}}}\end{{figure}}"
    if commands:
        yield r"\subsection*{Commands}\begin{flushleft}\footnotesize\ttfamily"
    for lines in commands.values():
        yield from (rf"{escaped(line)}\par" for line in lines)
    if commands:
        yield r"\end{flushleft}"


def tabular(table: Table) -> str:
    """Returns a table as LaTeX, as wide as the page if it has many columns."""
    rows = [" & ".join(map(escaped, row)) + r" \\" for row in (table.header, *table.rows)]
    head, *body = rows
    columns = "l" * len(table.header)
    if len(table.header) <= WIDE:  # long words wrap
        columns = "l" + rf"p{{{0.8 / max(1, len(table.header) - 1):.2f}\linewidth}}" * (
            len(table.header) - 1
        )
    made = "\n".join((rf"\begin{{tabular}}{{{columns}}}", head, r"\hline", *body, r"\end{tabular}"))
    wide = len(table.header) > WIDE
    return rf"\noindent\resizebox{{\linewidth}}{{!}}{{{made}}}" if wide else rf"\noindent {made}"


def escaped(text: str) -> str:
    """Returns a text in which LaTeX reads each character as itself."""
    return SPECIAL.sub(lambda found: LATEX.get(found[0], f"\\{found[0]}"), text)
