"""Metrics of outputs against references, and of two ways to decode against each other.

An output is compared with the reference of its text. With several samples per text, a metric is the
mean of its values over samples, each of all texts. A metric `of_samples` takes them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specdec.common.statistics import Estimate, estimates
from specdec.tasks.metrics import SumMetric


def values(
    metric: Callable[..., Mapping[str, float]],
    references: Sequence[object],
    outputs: Sequence[Sequence[object]],
) -> dict[str, float]:
    """Returns name -> value, 0..100 for our own metrics of texts."""
    samples = _as_read_by(metric, outputs)
    return _mean_of([metric(list(references), list(sample)) for sample in samples])


def differences(
    metric: SumMetric,
    references: Sequence[object],
    outputs: Sequence[Sequence[object]],
    baseline: Sequence[Sequence[object]],
) -> dict[str, Estimate]:
    """Returns name -> the score of `outputs` minus that of `baseline`, by a paired bootstrap."""
    both = np.array([_statistics(metric, references, way) for way in (outputs, baseline)])
    names = list(_difference(metric, both.sum(axis=2)))

    def figures(sums: np.ndarray) -> np.ndarray:
        """Maps [2, samples, S, resamples] to [names, resamples]."""
        drawn = [_difference(metric, resample) for resample in np.moveaxis(sums, -1, 0)]
        return np.array([[values[name] for values in drawn] for name in names])

    return dict(zip(names, estimates(np.moveaxis(both, 2, -1), figures), strict=True))


def _statistics(
    metric: SumMetric, references: Sequence[object], outputs: Sequence[Sequence[object]]
) -> list[list[np.ndarray]]:
    """Returns [samples][texts] of [S]."""
    return [
        [metric.statistics(*pair) for pair in zip(references, sample, strict=True)]
        for sample in _as_read_by(metric, outputs)
    ]


def _as_read_by(
    metric: Callable, outputs: Sequence[Sequence[object]]
) -> Sequence[Sequence[object]]:
    """Returns [samples][texts], or one row of each text's tuple of samples."""
    if isinstance(metric, SumMetric) and metric.of_samples:
        return [list(zip(*outputs, strict=True))]
    return outputs


def _difference(metric: SumMetric, sums: np.ndarray) -> dict[str, float]:
    """Returns the first outputs' values minus the second's, from sums [2, samples, S]."""
    first, second = (_mean_of([metric.values(sample) for sample in way]) for way in sums)
    return {name: first[name] - second[name] for name in first}


def _mean_of(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([values[name] for values in samples])) for name in samples[0]}
