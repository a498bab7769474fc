"""scripts/studies/harness.py without models: pytest tests/measure/test_harness.py"""

from __future__ import annotations

import argparse
import itertools
import sys
import types
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "studies"))
import harness  # noqa: E402


def test_a_line_replaces_that_with_the_same_keys(tmp_path):
    args = argparse.Namespace(results=tmp_path)
    lines = harness.Results.of(args, "blocks/lines", "pair", "length")
    for line in ({"length": 1, "x": 1}, {"pair": "ende", "length": 1}, {"length": 2}):
        lines.put(line)
    assert lines.path == tmp_path / harness.device_name() / "blocks" / "lines.jsonl"
    lines.put({"pair": "captions", "length": 1, "x": 2})  # what lines without a pair are of
    assert [(x.get("pair"), x["length"], x.get("x")) for x in lines] == [
        ("ende", 1, None),
        (None, 2, None),
        ("captions", 1, 2),
    ]
    assert lines.known() == {("ende", "1"), ("captions", "2"), ("captions", "1")}


def test_turns_go_on_where_they_stopped_and_each_way_is_first_equally_often(tmp_path):
    lines = harness.Results(tmp_path, "times", "text", "repeat")
    batches = [types.SimpleNamespace(index=[text]) for text in (3, 5)]
    asked = []
    ways = {name: lambda batch, name=name: asked.append((name, batch.index[0])) for name in "ab"}

    def measured(count):
        turns = harness.turns(ways, batches, 2, {}, lines)
        for line, found in itertools.islice(turns, count):
            assert found.keys() == line["seconds"].keys() == ways.keys()
            lines.put(line)

    measured(1)
    assert asked == [("a", 3), ("b", 3)] * 2  # what compiles is not counted
    asked.clear()
    measured(9)
    assert asked[2:] == [("b", 5), ("a", 5), ("b", 3), ("a", 3), ("a", 5), ("b", 5)]
    assert [(one["text"], one["repeat"]) for one in lines] == [(3, 0), (5, 0), (3, 1), (5, 1)]
    medians = harness.medians(list(lines))
    assert list(medians) == ["a", "b"]
    first = [one["seconds"]["a"] for one in lines]
    assert medians["a"].tolist() == [np.mean(first[::2]), np.mean(first[1::2])]


def test_figures_are_of_sums_over_texts():
    seconds = np.array([1.0, 3.0]), np.array([2.0, 2.0])
    value, low, high = harness.of_sums(seconds, lambda sums: sums[0] / sums[1])
    assert (value, low, high) == (1.0, 0.5, 1.5)
    assert harness.interval([value, low, high], "+.0%") == "+100% (+50% to +150%)"
    assert harness.head("a", "b") == "| a | b |\n|---|---|"
