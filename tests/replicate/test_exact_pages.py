"""Plans, sentences and LaTeX of a study, word by word: pytest tests/replicate"""

from __future__ import annotations

import dataclasses

from specdec.common.tables import PageTable
from specdec.report.replicate import page, replication, results, study_tables
from specdec.report.replicate.results import Place, RowFigures, Step
from specdec.report.replicate.study import Grown, Need, Published, Study, StudyRow

ROW = StudyRow(
    "a",
    ["--gin_file=a.gin"],
    needs=["model", "data"],
    more=["--metric=bleu"],
    tables=True,
    grown=Grown(["--gin_file=demo.gin"], "small"),
    published=Published(0.6, 0.02, 2.75, 3.4, 2.5),
    alphas={"unigram": [0.04, 0.05, 0.06, 0.1]},
)
STUDY = Study(
    "mine",
    "Mine",
    "About it.",
    [ROW],
    needs={"model": Need("a model", "--target={}"), "data": Need("texts", "--input_file={}")},
    alpha=0.5,
    limit=8,
    tokens=1000,
)


def measured_row() -> RowFigures:
    """The figures of a row, each one another number."""
    one = RowFigures(ROW, ["model: a model", "data: texts"], metric="bleu", identical="12 of 12")
    one.measured = {"speedup": 2.0, "low": 1.9, "high": 2.2, "per_token": 2.05, "alpha": 0.7123}
    one.measured |= {"tokens_per_call": 3.456, "cost_ratio": 0.1234, "target": 30.126, "run": 30.5}
    one.alphas = {"model": [0.71, 0.75, 0.8, 0.9123], "bigram": [0.2]}
    one.layers, one.parameters = 8, 76_961_152
    one.places = {
        "v4:1x1x1": Place(20 * 2**30, 30 * 2**30, "", 0.0234, 1.256, 3.14, 2.81),
        "v5e:1x1": Place(20 * 2**30, 16 * 2**30, "from shapes"),
        "here": Place(recorded=1.8),
    }
    return one


def test_a_plan_word_by_word():
    one = measured_row()
    one.bytes, one.minutes, one.marks = 1_234_000_000, 26.6, ["GROWN"]
    one.failures = {"run": "needs 9 GB"}
    one.steps = [Step("a", "bench", ())]
    title, _, made, _, *notes = replication.overview(STUDY, [one, RowFigures(ROW)])
    assert title == "Mine"
    header, _, first, second = made.splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        *("row", "lacks", "published", "GB here", "minutes"),
        *("v4:1x1x1, one device", "v4:1x1x1, predicted", "v5e:1x1, one device"),
    ]
    assert [cell.strip() for cell in first.split("|")[1:-1]] == [
        *("a", "model, data, runs GROWN, run: needs 9 GB", "3.4", "1.2", "27"),
        *("20.0 of 30.0 GiB", "3.14", "20.0 of 16.0 GiB, 4.0 too much (from shapes)"),
    ]
    assert [cell.strip() for cell in second.split("|")[1:4]] == ["a", "nothing", "3.4"]
    assert notes == [
        study_tables.FROM_SHAPES,
        "Give what is missing with --use=NAME=PATH:",
        "  model: a model",
        "  data: texts",
        "Minutes are estimates: a target call takes the time to read its parameters here.",
    ]


def test_deep_and_wide_drafts_word_by_word():
    def draft(name: str, layers: int, parameters: int, pays_from: float) -> RowFigures:
        row = dataclasses.replace(ROW, name=name)
        places = {"v4:1x1x1": Place(pays_from=pays_from), "v5e:1x1": Place()}
        return RowFigures(row, layers=layers, parameters=parameters, places=places)

    deep, wide = draft("deep", 24, 115_000_000, 1.5), draft("wide", 12, 100_000_000, 1.2)
    assert list(results.depth_or_width([wide, deep])) == [
        "v4:1x1x1: deep has 24 layers, wide has 12, with 115M and 100M parameters. The deep draft "
        "needs 1.25 times as many tokens per call for the same speed."
    ]
    (line,) = results.depth_or_width([wide, draft("deep", 24, 100_000_000, 1.1)])
    assert "needs fewer tokens per call" in line
    for other in (draft("deep", 23, 100_000_000, 1.5), draft("deep", 24, 116_000_000, 1.5)):
        assert not list(results.depth_or_width([wide, other]))
    deep.row = dataclasses.replace(deep.row, needs=["other", "data"])
    assert not list(results.depth_or_width([wide, deep]))


def test_a_page_in_markdown_and_latex_word_by_word():
    tables = [PageTable("Speed & more", ["row", "x"], [["a_1", "2"]], "Legend 50 %.")]
    facts = {"machine": ["one", "two"], "date": ["today"]}
    figures, lines = {"Rows": "figures/rows.png"}, {"a": ["specdec bench", "specdec eval"]}
    made = page.Page("T_1", "About.", facts, tables, ["n1", "n2"], figures, lines)
    assert list(made.markdown()) == [
        "# T_1",
        "About.",
        "- machine: one; two\n- date: today",
        "## Speed &amp; more",
        "| row | x |\n|---|---|\n| a_1 | 2 |",
        "Legend 50 %.",
        "- n1\n- n2",
        "![Rows](figures/rows.png)",
        "## Commands of a",
        "```bash\nspecdec bench\nspecdec eval\n```",
    ]
    assert "\n".join(made.latex()).splitlines() == [
        r"\section*{T\_1}",
        "About.",
        r"\par machine: one; two",
        r"\par date: today",
        r"\subsection*{Speed \& more}",
        r"\noindent \begin{tabular}{lp{0.80\linewidth}}",
        *("row & x \\\\", "\\hline", "a\\_1 & 2 \\\\", "\\end{tabular}"),
        r"\par\smallskip\noindent Legend 50 \%.",
        r"\par\noindent n1",
        r"\par\noindent n2",
        r"\begin{figure}[p]\centering\includegraphics[width=0.7\linewidth]{figures/rows.png}",
        r"\caption{Rows}\end{figure}",
        r"\begin{flushleft}\footnotesize\ttfamily",
        r"specdec bench\par",
        r"specdec eval\par",
        r"\end{flushleft}",
    ]
