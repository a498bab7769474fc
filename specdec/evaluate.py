"""Metrics of outputs against references, and of two ways to decode against each other.

An output is compared with the reference of its text. With several samples per text a metric is the
mean of its values over samples, each of all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec.tasks.metrics import SumMetric

RESAMPLES = 1000


class Difference(NamedTuple):
    """How much more one way scores than another, and the 95 % interval of that."""

    value: float
    low: float
    high: float


def values(
    metric: Callable[..., Mapping[str, Any]],
    references: Sequence[Any],
    outputs: Sequence[Sequence[Any]],
) -> dict[str, float]:
    """Name -> value, 0..100 for our own metrics.

    Args:
      metric: in seqio's form, a function of (targets, predictions).
      references: [texts] what it takes for targets.
      outputs: [samples][texts] predictions.
    """
    return _mean_of([metric(list(references), list(sample)) for sample in outputs])


def differences(
    metric: SumMetric,
    references: Sequence[Any],
    outputs: Sequence[Sequence[Any]],
    baseline: Sequence[Sequence[Any]],
) -> dict[str, Difference]:
    """Name -> how much more `outputs` scores than `baseline`, both [samples][texts].

    The interval is that of a paired bootstrap over texts (Koehn, 2004): each of 1,000 resamples
    draws as many texts as there are, with replacement, and the same ones for both; the interval is
    from the 2.5th to the 97.5th percentile of the differences. The draws have a fixed seed.
    """
    both = np.array([_statistics(metric, references, way) for way in (outputs, baseline)])
    count = len(references)
    draws = np.random.default_rng(0)
    resampled = [
        _difference(metric, np.bincount(draws.integers(count, size=count), minlength=count) @ both)
        for _ in range(RESAMPLES)
    ]
    return {
        name: Difference(
            value, *np.percentile([one[name] for one in resampled], [2.5, 97.5]).tolist()
        )
        for name, value in _difference(metric, both.sum(axis=2)).items()
    }


def _statistics(
    metric: SumMetric, references: Sequence[Any], outputs: Sequence[Sequence[Any]]
) -> list[list[np.ndarray]]:
    """[samples][texts] of [S]."""
    return [
        [metric.statistics(*pair) for pair in zip(references, sample, strict=True)]
        for sample in outputs
    ]


def _difference(metric: SumMetric, sums: np.ndarray) -> dict[str, float]:
    """The first way's values minus the second's, from sums [2, samples, S]."""
    first, second = (_mean_of([metric.values(sample) for sample in way]) for way in sums)
    return {name: first[name] - second[name] for name in first}


def _mean_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in samples])) for name in samples[0]}
