"""Metrics over samples, and the bootstrap of their difference."""

import random
from typing import ClassVar

import numpy as np
import pytest

from specdec.common import statistics
from specdec.measure import output_metrics
from specdec.tasks.metrics import SumMetric, bleu


class Mean(SumMetric):
    """The mean of numbers, whatever the references."""

    signature: ClassVar[str] = "mean"

    def statistics(self, target, prediction):
        return np.array([1, prediction])

    def values(self, sums):
        return {"mean": sums[1] / sums[0]}


def texts(rows, seed):
    """Sentences of nine words, of which four in five are the reference's."""
    rng = random.Random(seed)
    words = [str(number % 7) for number in range(9)]
    return [" ".join(w if rng.random() < 0.8 else "x" for w in words) for _ in range(rows)]


REFERENCES = texts(30, 0)


def test_a_value_is_the_mean_over_samples():
    samples = [texts(30, 1), texts(30, 2)]
    each = [bleu(REFERENCES, sample)["bleu"] for sample in samples]
    assert each[0] != each[1]
    assert output_metrics.values(bleu, REFERENCES, samples) == {
        "bleu": pytest.approx(np.mean(each))
    }


def test_a_metric_of_somebody_else_has_a_value_too():
    def equal(targets, predictions):
        return {"equal": np.mean(np.array(targets) == np.array(predictions), dtype=np.float32)}

    assert output_metrics.values(equal, ["a", "b"], [["a", "x"]]) == {"equal": 0.5}


@pytest.mark.parametrize("samples", [1, 2])
def test_the_bootstrap_draws_texts_and_computes_the_metric_again(monkeypatch, samples):
    monkeypatch.setattr(statistics, "RESAMPLES", 25)
    ways = [[texts(30, 10 * way + sample) for sample in range(samples)] for way in (1, 2)]
    (difference,) = output_metrics.differences(bleu, REFERENCES, *ways).values()
    rng, found = np.random.default_rng(0), []
    for _ in range(25):
        drawn = rng.integers(30, size=30)
        again = [
            np.mean(
                [
                    bleu([REFERENCES[i] for i in drawn], [sample[i] for i in drawn])["bleu"]
                    for sample in way
                ]
            )
            for way in ways
        ]
        found.append(again[0] - again[1])
    scores = [output_metrics.values(bleu, REFERENCES, way)["bleu"] for way in ways]
    assert difference.value == pytest.approx(scores[0] - scores[1])
    assert difference[1:] == pytest.approx(np.percentile(found, [2.5, 97.5]))
    assert difference.low < difference.value < difference.high


def test_the_interval_is_that_of_a_mean_of_differences():
    """Pairs share what is hard about their text: unpaired, it would be ten times wider."""
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 10, size=400)
    ours, theirs = hard + rng.normal(0.2, 1, size=400), hard
    expected = 1.96 * np.std(ours - theirs) / np.sqrt(400)
    found = output_metrics.differences(Mean(), hard, [ours], [theirs])["mean"]
    assert found.value == pytest.approx(np.mean(ours - theirs))
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.1)


def test_equal_outputs_do_not_differ():
    outputs = [texts(30, 1)]
    assert output_metrics.differences(bleu, REFERENCES, outputs, outputs) == {"bleu": (0, 0, 0)}


def test_the_draws_are_the_same_every_time():
    ways = [[texts(30, 1)], [texts(30, 2)]]
    once, again = (output_metrics.differences(bleu, REFERENCES, *ways) for _ in range(2))
    assert once == again
