"""Pages and the words of figures, of records made by hand: pytest tests/report"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_figures import CPU, LINES, bench

from specdec.report import figures, generations, run_tables, summaries, times, words
from specdec.report.generations import ShownCall, ShownGeneration, Token
from specdec.report.summaries import ReportedRun

PAIRED = {"table": ("tr",), "dl": ("dt", "dd"), "tr": ("td", "th")}


class Cells(HTMLParser):
    """The texts of cells and of facts, in order; what only pictures show is left out."""

    def __init__(self):
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag, attrs):
        hidden = dict(attrs).get("aria-hidden") == "true" or self._open[-1:] == ["hidden"]
        self._open.append("hidden" if hidden else tag)
        if tag in ("td", "th", "dt", "dd", "h4"):
            self.found.append((tag, ""))

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        inside = {"td", "th", "dt", "dd", "h4"} & set(self._open)
        if inside and "hidden" not in self._open:
            tag, text = self.found[-1]
            self.found[-1] = tag, text + data


def cells(page: str) -> list[list[str]]:
    """Returns the words of each table's rows and of each list of facts."""
    rows: list[list[str]] = []
    for part in re.findall(r"<tr[ >].*?</tr>|<dl.*?</dl>|<h4>.*?</h4>", page, re.DOTALL):
        parser = Cells()
        parser.feed(part)
        rows.append([" ".join(text.split()) for _, text in parser.found])
    return rows


def page(runs: list[ReportedRun], lines: list[dict], folder: Path) -> str:
    """Returns the page of runs, and of generations if there are lines."""
    html = pytest.importorskip("specdec.report.html")
    file = folder / "lines.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return html.page(runs, generations.read([str(file)] if lines else []))


EXPLAINED = {
    "plan": "Autoregressive",
    "given": 1,
    "stop_ids": [1],
    "batch": {"seconds": 0.06, "rows": 3, "calls": 4},
    "token_texts": ["Given", "A", " b", "C", "D", "E", "F", ""],
    "proposed": [[11, 19, 18], [13, 14], [16, 1]],
    "proposed_texts": [["A", "x", "y"], ["C", "D"], ["F", ""]],
    "p": [[0.5, 0.125, 0.25], [0.75, 0.5], [0.25, 1.0]],
    "q": [[0.25, 0.5, 0.0], [1.0, None], [0.5, 1.0]],
    "softmax": [[0.5, 0.125, 0.25], [0.75, 0.5], [0.25, 1.0]],
    "own_p": [0.625, 0.875, None],
    "own_q": [0.375, None, None],
}
LINE = {
    "index": 4,
    "sample": 2,
    "input": "in",
    "prediction": "out",
    "tokens": [10, 11, 12, 13, 14, 15, 16, 1],
    "drafted": [3, 2, 2],
    "accepted": [1, 2, 2],
    "explained": EXPLAINED,
}
BENCH_LINE = {
    "mode": "speculative",
    "text": 7,
    "repeat": 0,
    "tokens": [30, 31, 32],
    "seconds": 0.25,
    "calls": 2,
    "drafted": [4, 2],
    "accepted": [1, 0],
}
HEAD = ["place", "token", "outcome"]
MORE = ["p, target", "q, drafter", "min(1, p/q)"]


def test_the_calls_of_texts(tmp_path):
    """Seven tokens after a given one, in three calls; five of seven drafted ones were accepted."""
    found = cells(page([], [LINE, BENCH_LINE], tmp_path))
    facts = ["tokens", "7", "target calls", "3", "tokens per call", "2.33", "drafts accepted"]
    facts += ["5 of 7", "time of 3 texts together", "60.0 ms"]
    assert found == [
        [*facts, "per target call, with prefill", "15.0 ms"],
        ["Call 1 of 3"],
        [*HEAD, *MORE],
        ["2", "A", "accepted", "0.5000", "0.2500", "1.0000"],
        ["3", "x", "rejected", "0.1250", "0.5000", "0.2500"],
        ["4", "y", "after a rejected token", "0.2500", "0.0000", "0.0000"],
        ["3", "b", "the target's correction", "0.6250", "0.3750", "none"],
        ["Call 2 of 3"],
        [*HEAD, *MORE],
        ["4", "C", "accepted", "0.7500", "1.0000", "0.7500"],
        ["5", "D", "accepted", "0.5000", "none", "none"],
        ["6", "E", "the target's own", "0.8750", "none", "none"],
        ["Call 3 of 3"],
        [*HEAD, *MORE],
        ["7", "F", "accepted", "0.2500", "0.5000", "0.5000"],
        ["8", "⟨end⟩", "accepted", "1.0000", "1.0000", "1.0000"],
        ["tokens", "3", "target calls", "2", "tokens per call", "1.50", "drafts accepted"]
        + ["1 of 6", "time", "250.0 ms"],
        ["Call 1 of 2"],
        HEAD,
        ["1", "#30", "accepted"],
        ["2", "?", "rejected"],
        ["3", "?", "after a rejected token"],
        ["4", "?", "after a rejected token"],
        ["2", "#31", "the target's correction"],
        ["Call 2 of 2"],
        HEAD,
        ["3", "?", "rejected"],
        ["4", "?", "after a rejected token"],
        ["3", "#32", "the target's correction"],
    ]


def test_given_tokens_and_names_of_texts(tmp_path):
    (tmp_path / "x").write_text(f"{json.dumps(LINE)}\n{json.dumps(BENCH_LINE | {'repeat': 3})}\n")
    explained, timed = generations.read([str(tmp_path / "x")])
    assert [(one.text, one.place) for one in explained.given] == [("Given", 1)]
    assert [explained.name, timed.name] == ["Text 4, sample 2", "Text 7, repeat 3"]
    assert [call.summary for call in explained.calls] == [
        "gamma 3: 1 of 3 accepted, then the target's correction",
        "gamma 2: 2 of 2 accepted, then the target's own",
        "gamma 2: 2 of 2 accepted, the text's end",
    ]


def summary(ratio: float, low: float, high: float) -> dict[str, Any]:
    """A benchmark without a prediction, which no figure shows."""
    found = bench() | {"speedup": {"ratio": ratio, "low": low, "high": high}, "prediction": None}
    return found | {"exact": True, "identical": 11, "repeats": 4, "forecast": None}


def test_intervals_have_one_scale(tmp_path):
    """Its end is the highest of all intervals, 4, so no speed-up is at a quarter."""
    runs = [ReportedRun("a", summary(2, 1.5, 4)), ReportedRun("b", summary(1, 0.5, 2))]
    made = page(runs, [], tmp_path)
    places = re.findall(r"--low: (.*?); --high: (.*?); --at: (.*?); --one: (.*?)\"", made)
    assert [tuple(map(float, place)) for place in places] == [
        (0.375, 1.0, 0.5, 0.25),
        (0.125, 0.5, 0.25, 0.25),
    ]
    slow = page([ReportedRun("c", summary(0.5, 0.25, 0.75))], [], tmp_path)
    assert "--low: 0.25; --high: 0.75; --at: 0.5; --one: 1.0" in slow  # one ends the scale then
    rows = [row for row in cells(made) if row[0] in "ab"]
    how = "GreedyMatch(), Greedy()"
    assert rows == [
        ["a", how, "2", "2.00 (1.50 to 4.00)", "", "", "", "2.50", "0.500", "11 of 12"],
        ["b", how, "2", "1.00 (0.50 to 2.00)", "", "", "", "2.50", "0.500", "11 of 12"],
    ]


@pytest.fixture
def run(tmp_path) -> ReportedRun:
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (tmp_path / "a.jsonl.summary.json").write_text(json.dumps(bench(environment=CPU)))
    (found,) = summaries.read([str(tmp_path / "a.jsonl.summary.json")])
    return found


def test_figures_in_words(run):
    """The text of median length has five tokens: of its calls none, two and one were accepted."""
    assert list(words.one_generation([run])) == [
        "Text 6 of a, 5 tokens: speculative 600.0 ms, alone 1600.0 ms",
        "Call 1: accepted 0, own 1, rejected 2",
        "Call 2: accepted 2, own 1, rejected 0",
        "Call 3: accepted 1, own 0, rejected 0",
    ]
    assert list(words.one_iteration([run])) == [
        "a, in steps of the target: draft 0.20 (2.00 ms), verify 1.50 (15.00 ms), "
        "rest 0.10 (1.00 ms), target alone 2.50 (25.00 ms)"
    ]
    assert list(words.predicted_and_measured([run])) == [
        "a: predicted 2.12, measured 2.00 (1.75 to 2.50)"
    ]
    assert list(words.draft_lengths([run])) == [
        "a, text 5, accepted by call: 2 of 2, 2 of 2, 2 of 2"
    ]


def test_an_excerpt_is_the_output_or_its_first_twelve_tokens():
    """Refused tokens are no part of the text."""
    tokens = [Token("accepted", f"{place} ", place) for place in range(1, 15)]
    calls = [
        ShownCall("a", 1, [*tokens[:7], Token("rejected", "x", 8)]),
        ShownCall("b", 2, tokens[7:]),
    ]
    shown = ShownGeneration("id", "name", calls)
    assert shown.excerpt == "1 2 3 4 5 6 7 8 9 10 11 12 "
    assert dataclasses.replace(shown, output="all of it").excerpt == "all of it"
    assert (shown.length, shown.tested, shown.accepted) == (14, 15, 14)
    assert shown.tokens_per_call == "7.00"
    assert ShownGeneration("id", "name", []).tokens_per_call == "–"


def test_each_draft_of_a_generation_is_a_bar_and_a_whole_one_is_marked(monkeypatch):
    draw_times = pytest.importorskip("specdec.report.draw_times")
    calls = [(1, 3, 2, 3), (4, 2, 2, 3)]
    means = {"places": [1, 2], "drafted": [3.0, 2.0], "accepted": [2.0, 1.5]}
    found = types.SimpleNamespace(name="a run", text=3, calls=calls, **means)
    monkeypatch.setattr(draw_times.times, "lengths", lambda runs: [found])
    figure = draw_times.draft_lengths([])
    assert figure.get_size_inches().tolist() == [8, 1.2 + 1.5]
    one, both = figure.axes
    (mark,) = one.lines
    assert (mark.get_xdata().tolist(), mark.get_ydata().tolist()) == ([5.5], [2])
    assert (mark.get_marker(), mark.get_color()) == ("^", "#0072B2") and one.margins()[1] == 0.1
    lines = [(x.get_label(), list(x.get_ydata()), x.get_color()) for x in both.lines]
    assert lines == [("drafted", [3.0, 2.0], "#D55E00"), ("accepted", [2.0, 1.5], "#009E73")]
    heights = [bar.get_height() for bar in one.patches]
    assert heights == [2, 1, 2, 0] and one.get_title() == "a run"


@pytest.mark.parametrize(
    "load, spread, name, fact",
    [
        (3.3, [0.8, 1.7], "machine is busy", "trust no figure here, the speed-up included"),
        (3.3, [0.9, 1.1], "machine is busy", "no other time is reliable"),
        (0.1, [0.9, 1.1], None, None),
    ],
)
def test_a_page_says_how_far_its_figures_can_be_trusted(run, load, spread, name, fact):
    low, high = spread
    busy = {**run.bench, "spread": {"low": low, "high": high, "timings": 68}}
    busy["run"] = {**busy["run"], "load": load}
    busy["environment"] = {**busy["environment"], "cores": 2}
    measured = dataclasses.replace(run, bench=busy)
    facts = run_tables.facts([measured])
    assert name is None or fact in facts[name][0]
    assert name or "machine is busy" not in facts
    for_several = summaries.conditions(busy)
    assert ("trust no figure" in for_several) == (spread == [0.8, 1.7])


def test_the_speedups_of_several_runs_are_no_interval(run):
    def sentence(*ratios):
        runs = []
        for ratio in ratios:
            speedup = {**run.bench["speedup"], "ratio": ratio}
            runs.append(dataclasses.replace(run, bench={**run.bench, "speedup": speedup}))
        return run_tables.sentence(runs)

    assert sentence(2.14, 1.82) == "2.14 and 1.82 times as fast as the target alone: two runs"
    assert sentence(2.14, 1.82, 1.9) == (
        "3 runs: the slowest 1.82, the fastest 2.14 times as fast as the target alone"
    )


def test_a_negative_time_is_drawn_as_none(run):
    prediction = {**run.bench["prediction"], "rest": -0.004}
    busy = dataclasses.replace(run, bench={**run.bench, "prediction": prediction})
    (line,) = words.one_iteration([busy])
    assert "rest none, target alone" in line and line.endswith(f"; none: {times.NEGATIVE}")
    timeline = times.timeline([busy])
    drawn = sum(timeline.part(name) for name in ("draft", "verify"))
    assert timeline.start(1) - timeline.start(0) == pytest.approx(drawn)
    figure = figures.one_iteration([busy])
    assert min(patch.get_width() for patch in figure.axes[0].patches) == 0


def test_a_token_that_is_a_space_is_seen():
    shown = [Token("own", text, 1).shown for text in ("a", " ", "  ", " b")]
    assert shown == ["a", "␣", "␣␣", " b"]
