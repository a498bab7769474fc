"""The report of `specdec eval`, of predictions made by hand: pytest tests/texts/test_evaluation.py

All predictions are there, so nothing is decoded.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import numpy as np
import pytest

from specdec.common.values import UsageError
from specdec.measure import evaluation, prediction_files
from specdec.measure.evaluation import Evaluation
from specdec.measure.prediction_files import PredictionsFolder
from specdec.models.partitioning import Share
from specdec.tasks import Batch
from specdec.tasks.metrics import SumMetric
from specdec.texts.texts import Data, TextList


class Same(SumMetric[str, str]):
    """The per cent of outputs that are their references, and the lengths of outputs."""

    signature = "by hand"

    def statistics(self, target: str, prediction: str) -> np.ndarray:
        return np.array([target == prediction, 1, len(prediction)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"same": 100 * float(sums[0] / sums[1]), "length": float(sums[2] / sums[1]) / 10}


# index, sample, prediction, its tokens, drafted, accepted, and the target alone
ROWS = [
    (0, 0, "A", [9, 4, 1], [2, 2], [1, 0], "A", [9, 4, 1]),
    (1, 0, "x", [9, 5, 1], [2], [2], "B", [9, 6, 1]),
    (0, 1, "A", [9, 4, 1], [3, 1], [0, 1], "A", [9, 4, 1]),
    (1, 1, "B", [9, 6, 6, 1], [1, 1, 1], [1, 1, 0], "yy", [9, 7, 1]),
    (2, 0, "C", [9, 8, 1], [0], [0], "zzz", [9, 8, 1]),
    (2, 1, "C", [9, 8, 1], [1], [0], "C", [9, 8, 8, 1]),
]
TEXTS = TextList([("a", "A"), ("b", "B"), ("c", "C")])


def record(index, sample, prediction, tokens, drafted, accepted, alone, alone_tokens) -> dict:
    return {
        "index": index,
        "sample": sample,
        "input": TEXTS[index][0],
        "target": TEXTS[index][1],
        "prediction": prediction,
        "tokens": tokens,
        "drafted": drafted,
        "accepted": accepted,
        "alone": alone,
        "alone_tokens": alone_tokens,
        "calls": len(drafted),
    }


def batches() -> list[Batch]:
    """Two texts, and one."""
    ids = np.zeros([2, 1], np.int32)
    return [
        Batch(ids, ids, np.array([0, 1]), ["a", "b"], ["A", "B"], None),
        Batch(ids, ids, np.array([2, -1]), ["c"], ["C"], None),
    ]


def evaluated(tmp_path, records: list[dict], **fields: Any) -> tuple[Any, dict]:
    """Returns the report of a run of two samples with a prefix, and metrics.json."""
    plan = types.SimpleNamespace(exact=fields.pop("exact", True), drafts=True)
    data = Data(None, "", {"inputs": 8, "targets": 8}, TEXTS, num_samples=2, batch_size=2)
    placement = types.SimpleNamespace(share=lambda: Share(0, 1), mesh=None)
    run: Any = types.SimpleNamespace(
        **{"plan": plan, "data": data, "placement": placement, "compare": True, "beams": None}
        | fields
    )
    run.batches = lambda: iter(batches())
    if run.beams:
        run.data = Data(None, "", {"inputs": 8, "targets": 8}, TEXTS, batch_size=2)
    engine: Any = types.SimpleNamespace(plan="a plan", prefix=(9,))
    variant: Any = types.SimpleNamespace(run=run, engine=engine)
    folder = PredictionsFolder(str(tmp_path / "out"), "settings\n", (0, 1))
    lines = "".join(f"{json.dumps(one)}\n" for one in records)
    (tmp_path / "out" / "predictions.jsonl").write_text(lines)
    expected = [(target, lambda text: text) for _, target in TEXTS]
    made = Evaluation(variant, expected, [Same()], None, engine)  # type: ignore[arg-type]
    report = made.write(folder)
    return report, json.loads((tmp_path / "out" / "metrics.json").read_text())


def test_the_report_of_two_samples(tmp_path):
    """Of six outputs five are right, and of those of the target alone four.

    Of 13 drafted tokens eleven were tested: those after a refused one are not.
    """
    report, written = evaluated(tmp_path, [record(*row) for row in ROWS])
    assert written == report and report.pop("environment")["devices"] >= 1
    difference = report.pop("difference")
    assert report == {
        "texts": 3,
        "samples": 2,
        "metrics": {
            "speculative": {"same": pytest.approx(500 / 6), "length": pytest.approx(0.1)},
            "alone": {"same": pytest.approx(400 / 6), "length": pytest.approx(0.15)},
        },
        "signatures": {"same": "by hand"},
        "identical": 3,
        "speculation": {
            "tokens": 13,
            "target_calls": 10,
            "tokens_per_call": 1.3,
            "alpha": pytest.approx(6 / 11),
        },
    }
    assert difference["same"]["value"] == pytest.approx(100 / 6)
    assert difference["length"]["value"] == pytest.approx(-0.05)
    difference["same"] |= {"low": -12.345, "high": 45.678}
    difference["length"] |= {"low": -0.123, "high": 0.01234}
    assert list(evaluation.lines(report | {"difference": difference})) == [
        "same: speculative 83.33, alone 66.67, difference +16.67 [-12.35, +45.68]",
        "length: speculative 0.1000, alone 0.1500, difference -0.0500 [-0.1230, +0.0123]",
        "identical outputs: 3 of 6",
        "same by by hand",
    ]


def test_outputs_of_an_inexact_run_are_the_same_by_chance(tmp_path):
    report, _ = evaluated(tmp_path, [record(*row) for row in ROWS], exact=False)
    assert "identical" not in report and report["same_by_chance"] == 3
    assert "NOT EXACT; the same by chance: 3 of 6" in list(evaluation.lines(report))


def test_beams_are_judged_by_the_best(tmp_path):
    beams = [
        (["A", "x"], ["A"], [[4], [5]], [[4]], 4, 2),
        (["y", "z"], ["B"], [[6], [7]], [[6]], 5, 5),
        ([], ["C"], [], [[8]], 3, 1),
    ]
    records = [
        {
            "index": index,
            "input": TEXTS[index][0],
            "target": TEXTS[index][1],
            "predictions": predictions,
            "tokens": tokens,
            "scores": [-0.5] * len(tokens),
            "steps": steps,
            "calls": calls,
            "alone": alone,
            "alone_tokens": alone_tokens,
        }
        for index, (predictions, alone, tokens, alone_tokens, steps, calls) in enumerate(beams)
    ]
    report, _ = evaluated(tmp_path, records, beams=object())
    values = {way: one["same"] for way, one in report["metrics"].items()}
    assert values == {"beams": pytest.approx(100 / 3), "alone": 100}
    assert report["search"] == {
        "plan": "a plan",
        "steps": 12,
        "target_calls": 8,
        "steps_per_call": 1.5,
    }
    assert "speculation" not in report and report["samples"] == 1


def test_metrics_are_written_at_the_step_of_the_checkpoint(monkeypatch):
    written: list = []

    class Writer:
        def __init__(self, path: str):
            written.append(path)

        def write_scalars(self, step: int, scalars: dict) -> None:
            written.append((step, scalars))

        def close(self) -> None:
            written.append("closed")

    clu = types.SimpleNamespace(metric_writers=types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "clu", clu)
    metrics = {"speculative": {"bleu": 30.5, "same": 1.0}, "alone": {"bleu": 29.5}}
    report: Any = {"metrics": metrics}
    evaluation._scalars("a folder", "models/checkpoint_1200/")(report)
    scalars = {"speculative/bleu": 30.5, "speculative/same": 1.0, "alone/bleu": 29.5}
    assert written == ["a folder", (1200, scalars), "closed"]
    assert evaluation.step_of("models/t5") == evaluation.step_of("models/t5_v1.1") == 0
    assert (evaluation.step_of("12"), evaluation.step_of("a/7/")) == (12, 7)
    monkeypatch.setitem(sys.modules, "clu", None)
    with pytest.raises(UsageError, match="pip install clu tensorboard"):
        evaluation._scalars("a folder", "")


@pytest.mark.parametrize(
    "ours, alone, shown",
    [
        (1.5, 2.25, "speculative 1.5000, alone 2.2500"),  # a ratio
        (2.5, 2.25, "speculative 2.50, alone 2.25"),
        (0.0, 31.256, "speculative 0.00, alone 31.26"),
    ],
)
def test_ratios_have_more_places_than_per_cent(ours, alone, shown):
    metrics = {"speculative": {"m": ours}, "alone": {"m": alone}}
    report: Any = {"texts": 3, "samples": 2, "metrics": metrics, "signatures": {}}
    assert list(evaluation.lines(report)) == [f"m: {shown}"]


@pytest.mark.parametrize("alone, parts", [(True, "*"), (False, None)])
def test_one_process_alone_holds_the_files_of_all_hosts(monkeypatch, tmp_path, alone, parts):
    held: list = []
    monkeypatch.setattr(prediction_files.records, "hold", lambda *given: held.append(given))
    folder = PredictionsFolder(str(tmp_path / "out"), "settings\n", (1, 2))
    folder.hold(alone)
    ((path, flag, found),) = held
    assert (path.parent, flag, found) == (tmp_path / "out", "--output_dir", parts)
    assert path.exists() and path == folder._own.path
