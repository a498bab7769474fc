"""`specdec report` on hand-made summaries: pytest tests/report/test_report.py"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specdec import cli
from specdec.common.statistics import Estimate
from specdec.measure import alphas
from specdec.measure.alphas import Accepted
from specdec.measure.summary import (
    Baseline,
    BenchmarkPrediction,
    BenchmarkSummary,
    Latency,
    PredictedByOthers,
    Quantiles,
    Speedup,
)

ROOT = Path(__file__).resolve().parents[2]
CPU = {"backend": "cpu", "cpu": "Some CPU", "cores": 2, "device": "cpu", "devices": 1}
TPU = {"backend": "tpu", "cpu": "Some CPU", "cores": 96, "device": "TPU v4", "devices": 4}
SETTINGS = {
    "drafter": "Autoregressive",
    "verifier": "GreedyMatch()",
    "sampling": "Greedy()",
    "dtype": {"target": "bfloat16", "draft": "bfloat16"},
    "parameters": {"target": 11_130_000_000, "draft": 76_900_000},
    "split": "test",
}


def bench(*, gamma: int | None = 5, environment=CPU, forecast=False, **settings) -> dict:
    """What the command writes, as far as it is shown."""
    prediction = BenchmarkPrediction(
        gamma=5,
        prefill=1,
        cost_ratio=0.0314,
        verify_cost=1.25,
        alpha_from_tau=0.7,
        long_generation=2.345,
        these_texts=2.2,
        measured_over_predicted=0.9,
        draft=1,
        verify=1,
        rest=0,
    )
    quantiles, latency = Quantiles(1, 2, 3, 4), Latency(1, 1)
    expected = PredictedByOthers("validation", 9, 3, 0.7, 2, 2.25, 2, 1, 1.125)
    summary = BenchmarkSummary(
        texts=32,
        repeats=3,
        seconds={"alone": quantiles, "speculative": quantiles},
        latency={"alone": latency, "speculative": latency},
        speedup=Speedup(Estimate(2.5, 2.25, 2.75), 2.6, 2.4),
        identical=96,
        tau=3.5,
        alpha=0.777 if gamma else None,
        baseline=Baseline(1, 1, 1, 1, 1, 1),
        prediction=prediction if gamma else None,
        forecast=expected if forecast else None,
    )
    return {
        "environment": environment | {"versions": {"jax": "0.10.2"}},
        "run": SETTINGS | {"gamma": gamma} | settings,
        **summary.record(),
    }


def measured(environment=CPU, **settings) -> dict:
    """Likewise: two texts with 10 tokens each, of which a model gets 8 and a bigram 2."""
    records = [
        Accepted(index, 10, {"model": [8.0, 8.5, 9.0, 9.5], "bigram": [2.0, 2.0, 2.0, 3.0]})
        for index in range(2)
    ]
    summary = alphas.summarize(records)
    return {
        "environment": environment | {"versions": {"jax": "0.10.2"}},
        "run": SETTINGS | settings,
        "texts": summary.texts,
        "tokens": summary.tokens,
        "alphas": summary.record()["alphas"],
    }


@pytest.fixture
def write(tmp_path):
    """Puts a summary into a file, whose path it returns."""

    def write(name: str, figures) -> str:
        path = tmp_path / f"{name}.summary.json"
        path.write_text(json.dumps(figures))
        return str(path)

    return write


@pytest.fixture
def report(capsys):
    def run(*arguments: str) -> str:
        assert cli.main(["report", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_a_run_beside_the_row_of_its_name(write, report):
    """The paper's figures are those of configs/leviathan/cnndm_small_t0.gin."""
    alpha = write("cnndm_small_t0.alpha.jsonl", measured())
    text = report(write("cnndm_small_t0.jsonl", bench()), alpha)
    speed, legend, lenient, _, conditions = text.split("\n\n")
    assert speed.splitlines() == [
        "| run |  | gamma | alpha | tested | c | v | predicted | measured |",
        "|---|---|---|---|---|---|---|---|---|",
        "| cnndm_small_t0 | paper | 5 | 0.65 |  | 0.02 | 1 | 2.4 | 3.1 |",
        "| cnndm_small_t0 | here | 5 | 0.800 [0.800, 0.800] | 0.777 | 0.031 | 1.250 | 2.345 "
        "| 2.500 [2.250, 2.750] |",
    ]
    assert "v = 1" in legend
    assert lenient.splitlines()[2:] == [
        "| cnndm_small_t0 | model | 0.800 [0.800, 0.800] | 0.850 [0.850, 0.850] "
        "| 0.900 [0.900, 0.900] | 0.950 [0.950, 0.950] | 20 |",
        "| cnndm_small_t0 | bigram | 0.200 [0.200, 0.200] | 0.200 [0.200, 0.200] "
        "| 0.200 [0.200, 0.200] | 0.300 [0.300, 0.300] | 20 |",
    ]
    assert lenient.startswith("| run | drafter | l = 1 | l = 0.5 | l = 0.3 | l = 0.1 | tokens |\n")
    models = "target 11130.0M bfloat16 and draft 76.9M bfloat16; Greedy()"
    assert conditions.splitlines() == [
        f"- cnndm_small_t0, bench: 2 cores of Some CPU, jax 0.10.2; {models}; 32 texts of test",
        f"- cnndm_small_t0, acceptance: 2 cores of Some CPU, jax 0.10.2; {models}; 2 texts of test",
    ]


def test_a_run_that_nobody_published_stands_alone(write, report):
    text = report(write("mine.jsonl", bench(environment=TPU)))
    assert "paper |" not in text and "drafter" not in text
    assert "| mine | here | 5 |  | 0.777 |" in text and "mine, bench: 4 x TPU v4, jax" in text


def test_a_published_row_that_is_named(write, report):
    files = [write(name, bench()) for name in ("mine.jsonl", "ende_small_t0.jsonl")]
    text = report("--paper=leviathan/ende_large_t1.gin", *files)
    rows = [line for line in text.splitlines() if "| paper |" in line]
    assert rows == [
        f"| {name} | paper | 3 | 0.71 |  | 0.11 | 1 | 2 | 1.4 |"
        for name in ("mine", "ende_small_t0")
    ]


def test_what_was_not_measured_is_empty(write, report):
    """A schedule that no formula describes, and an acceptance measurement alone."""
    text = report(write("a.jsonl", bench(gamma=None)), write("b.jsonl", measured()))
    assert "\n| a | here |  |  |  |  |  |  | 2.500 [2.250, 2.750] |\n" in text
    assert "\n| b | here |  | 0.800 [0.800, 0.800] |  |  |  |  |  |\n" in text


def test_the_headline(write, report):
    sampled = bench(sampling="Sampling(temperature=1.0, top_k=None)", verifier="Coupled()")
    files = write("a.jsonl", bench(forecast=True)), write("b.jsonl", sampled | {"identical": None})
    table, _, conditions = report("--headline", *files, write("c", measured())).split("\n\n")
    assert table.splitlines()[2:] == [
        "| a | GreedyMatch(), Greedy() | 5 | **2.50** (2.25 to 2.75) | 2.25 | 1.12 | 0.90 "
        "| 3.50 | 0.777 | 96 of 96 |",
        "| b | Coupled(), Sampling(temperature=1.0) | 5 | **2.50** (2.25 to 2.75) |  |  | 0.90 "
        "| 3.50 | 0.777 | in distribution |",
    ]
    assert conditions.splitlines() == [
        "- a, b: 2 cores of Some CPU, jax 0.10.2; target 11130.0M bfloat16 and draft 76.9M "
        "bfloat16; 3 repeats; 32 texts of test"
    ]


def test_a_headline_of_nothing(write, capsys):
    assert cli.main(["report", "--headline", write("c", measured())]) == 2
    assert "none of the summaries is of specdec bench" in capsys.readouterr().err


def test_to_a_file(write, report, tmp_path):
    path = tmp_path / "report.md"
    summary = write("mine.jsonl", bench())
    assert report(f"--output_file={path}", summary) == ""
    assert path.read_text() == report(summary)


def test_every_row_of_the_paper_is_found(write, report):
    rows = sorted(file.stem for file in (ROOT / "configs/leviathan").glob("*_t?.gin"))
    assert len(rows) == 12
    text = report(*(write(f"{row}.jsonl", bench()) for row in rows))
    assert re.findall(r"^\| (\w+) \| paper \|", text, re.M) == rows


@pytest.mark.parametrize(
    "files, message",
    [
        ({"a.jsonl": {"mode": "alone"}}, r"a.jsonl.summary.json is no summary; give FILE.summary"),
        (
            {"a.jsonl": dict.fromkeys(("alphas", "run", "environment"))},
            r"a.jsonl.summary.json is no summary; it .*; measure again$",
        ),
        (
            {"a.jsonl": measured(parameters={"target": 1})},
            r"a.jsonl.summary.json is no summary; it has models with a size or .* dtype alone; ",
        ),
        (
            {"a.1": bench(), "a.2": bench()},
            "a.2.summary.json is the second summary of specdec bench for a",
        ),
        (
            {"a.1": bench(), "a.2": measured(sampling="Sampling()")},
            r"a was benchmarked with sampling Greedy\(\), but its acceptance .* Sampling\(\);",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(write, capsys, files, message):
    paths = [write(name, figures) for name, figures in files.items()]
    assert cli.main(["report", *paths]) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err) and captured.err.count("\n") == 1 and not captured.out
