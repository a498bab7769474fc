"""Tables of the speech pair, next to their lines: pytest tests/benchmark/test_speech_figures.py"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def stored(name: str) -> list[dict[str, Any]]:
    file = DOCS / "results" / "amd_epyc_avx512_2_cores" / "speech" / name
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def rows(mark: str) -> dict[str, list[str]]:
    """Returns the rows of the first table behind a mark in the section on sound, by first cell."""
    page = (DOCS / "explanation" / "other-domains.md").read_text(encoding="utf-8")
    table = page.partition("\n## Sound\n")[2].partition(mark)[2].partition("---|\n")[2]
    cells = (re.split(r" \| ", line.strip("| ")) for line in table.partition("\n\n")[0].split("\n"))
    return {first: rest for first, *rest in cells}


def interval(figure: list[float], digits: int) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in figure)
    return f"{value} ({low} to {high})"


def test_acceptance_and_word_errors_are_in_the_lines():
    lines, shown = stored("judged.jsonl"), rows("WER is the word error rate")
    assert [str(line["gamma"]) for line in lines] == list(shown)
    for line in lines:
        assert shown[str(line["gamma"])] == [
            interval(line["tokens_per_call"], 2),
            interval(line["alpha"], 3),
            f"{line['identical']} of {line['texts']}",
            *(interval(line["wer"][way], 2) for way in ("speculative", "alone")),
        ]
        assert line["identical"] == line["texts"] and line["wer"]["alone"][2] < 20


def test_times_are_in_the_lines():
    lines, shown = stored("timed.jsonl"), rows("Time over that of the target alone")
    assert {*shown, "alone"} == set(lines[0]["seconds"])
    for column, clock in enumerate(("seconds", "processor_seconds")):
        sums = {}
        for way in lines[0][clock]:
            of_texts: dict[int, list[float]] = {}
            for line in lines:
                of_texts.setdefault(line["text"], []).append(line[clock][way])
            sums[way] = sum(map(statistics.median, of_texts.values()))
        for way, cells in shown.items():
            assert cells[column].startswith(f"{sums[way] / sums['alone']:.2f} (")
