"""Makes one self-contained HTML page of runs. Needs jinja2, and matplotlib for figures.

Texts, tokens and names are untrusted, so the template escapes all of them. Control characters, and
characters that change the direction of text, are shown by their code points. The page's policy
allows only the script in the page, by its hash, and no network access.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from specdec.common.tables import PageTable
from specdec.report import run_tables, words
from specdec.report.generations import KINDS, ShownGeneration
from specdec.report.speedups import predicts, varies
from specdec.report.summaries import ReportedRun, speedup

FOLDER = Path(__file__).parent / "page"
TEXTS = 200  # the most generations on a page, as more make it slow
JOINERS = "\u200c\u200d"  # invisible but harmless, needed in Persian and in emoji


class Interval(NamedTuple):
    """A table cell that shows a speed-up as text and as a bar on an axis from 0 to 1."""

    text: str
    low: float  # the interval's lower end, as a place on the axis
    at: float  # the speed-up
    high: float  # the interval's upper end
    unit: float  # the place of speed-up 1


def page(runs: Sequence[ReportedRun], generations: Iterator[ShownGeneration]) -> str:
    """Returns the HTML page of runs and generations; either may be empty."""
    shown = list(itertools.islice(generations, TEXTS))
    conditions = [*run_tables.benchmarks(runs), *run_tables.places(_acceptances(runs))]
    return rendered(
        {"tables": list(_tables(runs)), "figures": figures_of(runs), "generations": shown},
        title=run_tables.sentence(runs),
        facts=run_tables.facts(runs),
        conditions=conditions if len(conditions) > 1 else (),  # facts have those of one run
        left_out=sum(1 for _ in generations),
    )


def rendered(content: Mapping[str, object], **about: object) -> str:
    """Returns the HTML page with the sections in `content`, by name; `about` fills the template.

    Sections are "tables", "figures", "generations" and "commands"; empty ones are left out."""
    names = {
        "tables": "Speed-up",
        "figures": "Figures",
        "generations": "Generations, call by call",
        "commands": "Commands",
    }
    script = _text("page.js")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    return environment.from_string(_text("page.html")).render(
        {**dict.fromkeys(names, ()), **content},
        **about,
        parts={id: name for id, name in names.items() if content.get(id)},
        kinds=KINDS,
        style=Markup(_text("page.css")),
        script=Markup(script),
        policy=_policy(script),
    )


def visible(text: str) -> str:
    """Returns the text with control characters replaced by their code points."""
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    steers = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"⟨U+{ord(character):04X}⟩" if steers and character not in JOINERS else character


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _tables(runs: Sequence[ReportedRun]) -> Iterator[PageTable]:
    """Yields the tables of speed-ups, of published rows and of acceptance rates with content."""
    ratios = [speedup(run.bench) for run in runs if run.bench]
    if ratios:
        longest, table = max(1.0, *(ratio.high for ratio in ratios)), run_tables.measured(runs)
        column = table.header.index(run_tables.SPEEDUP)
        rows = [list(row) for row in table.rows]
        for row, ratio in zip(rows, ratios, strict=True):
            at, low, high, unit = (round(value / longest, 4) for value in (*ratio, 1.0))
            row[column] = Interval(str(row[column]), low, at, high, unit)
        yield table._replace(rows=rows)
    if any(run.paper for run in runs):
        yield run_tables.speeds(runs)
    if _acceptances(runs):
        yield run_tables.alphas(runs)


def _acceptances(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if run.acceptance]


def figures_of(runs: Sequence[ReportedRun]) -> list[dict[str, object]]:
    """Returns, for each figure of the runs, its "name", "title", "svg" and "words" (a list)."""
    if not any(predicts(run) or varies(run) for run in runs):
        return []
    from specdec.report import figures

    drawn = figures.svgs(runs)
    return [
        {"name": name, "title": title, "svg": drawn[name], "words": list(say(runs))}
        for name, (title, say) in words.OF.items()
        if name in drawn
    ]
