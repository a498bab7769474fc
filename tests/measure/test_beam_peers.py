"""The comparison of beams without the peers: pytest tests/measure/test_beam_peers.py"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from specdec.common.values import UsageError

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "peers"), str(ROOT / "scripts" / "studies")]
import beam_peers  # noqa: E402
import beams_compared  # noqa: E402
import beams_identical  # noqa: E402
import beams_timed  # noqa: E402
from beam_peers import Found  # noqa: E402

OURS = Found(
    np.array([[[4, 1], [5, 1]], [[6, 1], [7, 1]], [[8, 1], [0, 0]]], np.int32),
    np.array([[-1.0, -2.0], [-1.0, -1.5], [-1.0, -1e7]], np.float32),
)


def changed(row: int, beams: list[list[int]]) -> Found:
    tokens = OURS.tokens.copy()
    tokens[row] = beams
    return OURS._replace(tokens=tokens)


def test_the_same_beams_are_identical_and_places_without_a_text_have_no_score():
    theirs = OURS._replace(scores=OURS.scores + np.float32(0.25))
    theirs.scores[2, 1] = -2e7
    found = beams_identical.compare(OURS, theirs)
    assert found == {
        "texts": 3,
        "identical": 3,
        "best_identical": 3,
        "score_difference": 0.25,
        "differences": [],
    }


@pytest.mark.parametrize(
    ("beams", "place", "same_set"),
    [([[7, 1], [6, 1]], 0, True), ([[6, 1], [9, 1]], 1, False)],
)
def test_a_difference_has_its_place_and_both_beams(beams, place, same_set):
    found = beams_identical.compare(OURS, changed(1, beams))
    assert (found["identical"], found["best_identical"]) == (2, 3 - (place == 0))
    (one,) = found["differences"]
    assert (one["row"], one["place"], one["same_set"]) == (1, place, same_set)
    assert one["tokens"] == [OURS.tokens[1, place].tolist(), beams[place]]
    assert one["scores"] == [OURS.scores[1, place]] * 2


def test_a_near_tie_is_one_that_moved_weights_decide_otherwise(monkeypatch):
    theirs = changed(1, [[7, 1], [6, 1]])
    (one,) = beams_identical.compare(OURS, theirs)["differences"]
    found = iter([OURS, theirs] * beams_identical.SEEDS)
    asked = []
    monkeypatch.setattr(beam_peers, "ours", lambda *x: asked.append(x[2]) or next(found))
    params = {"target": {"kernel": np.ones([50], np.float32)}}
    search = types.SimpleNamespace(params=params)
    beams_identical.audit(search, None, theirs, [one])
    assert (one["as_peer"], one["searches"]) == (beams_identical.SEEDS // 2, len(asked))
    kernels = np.stack([weights["kernel"] for weights in asked])
    assert 0 < np.abs(kernels - 1).max() < 10 * beams_identical.MOVED
    assert len(np.unique(kernels, axis=0)) == len(asked)


def test_the_tables_by_hand():
    line = {"pair": "a", "beams": 4, "peer": "huggingface", "texts": 10, "best_identical": 10}
    near, other = {"as_peer": 3}, {"as_peer": 0}
    lines = [
        line | {"identical": 9, "score_difference": 1e-6, "differences": [near]},
        line | {"identical": 9, "score_difference": 2e-6, "differences": [other]},
    ]
    row = "| 4 | transformers' generate | 18 of 20 | 20 of 20 | 2.0e-06 | 1 | 1 |"
    assert list(beams_identical.table(lines))[1:] == [row]
    line = {"pair": "a", "target": "b", "beams": 4, "load": 1.5}
    seconds = [{"specdec": x, "t5x": 2 * x} for x in (1.0, 9.0, 2.0)]  # the median is 2
    lines = [line | {"text": 0, "repeat": i, "seconds": x} for i, x in enumerate(seconds)]
    lines = [x | {"processor_seconds": {"specdec": 4.0, "t5x": 1.0}} for x in lines]
    assert list(beams_timed.table(lines))[1:] == [
        "| a | b | specdec | 2.000 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | 1.5 to 1.5 |",
        "| a | b | T5X's search and network | 4.000 | 2.00 (2.00 to 2.00) | 0.25 (0.25 to 0.25) "
        "| 1.5 to 1.5 |",
    ]


@pytest.mark.parametrize("checkout", [None, "nowhere"])
def test_a_folder_without_t5x_is_refused_in_one_line(checkout):
    with pytest.raises(UsageError, match=f"--t5x is {checkout!r} and has no t5x/decoding.py; give"):
        beam_peers.versions(["t5x"], checkout)


def test_a_prediction_is_of_the_calls_of_both_models():
    ten = [10.0, 9.0, 11.0]
    line = {"way": "a", "bleu": 30.0, "bleu_difference": [-1, -2, 0.5], "unchanged": 0.5}
    line |= {"calls": ten, "draft_calls": [20.0]}
    seconds = 10 * beams_compared.V4["target"] + 20 * beams_compared.V4["draft"]
    assert beams_compared.predicted(line) == pytest.approx(seconds)
    row = "| a | 30.00 | -1.00 (-2.00 to 0.50) | 50% | 10.0 (9.0 to 11.0) | 20.0 | "
    assert list(beams_compared.table([line]))[1:] == [f"{row}{1e3 * seconds:.0f} |"]
