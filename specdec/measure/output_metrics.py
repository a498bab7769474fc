"""Metrics of outputs against references, and the difference of two ways to decode.

With several samples per text, a metric is computed on the first samples of all texts, on the second
samples and so on, and averaged. A metric with `of_samples` takes all samples of a text together.
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
    """Returns name -> value of a metric on outputs [samples][texts], averaged over samples."""
    samples = _as_read_by(metric, outputs)
    return _mean_of([metric(list(references), list(sample)) for sample in samples])


def differences(
    metric: SumMetric,
    references: Sequence[object],
    outputs: Sequence[Sequence[object]],
    baseline: Sequence[Sequence[object]],
) -> dict[str, Estimate]:
    """Returns name -> the metric of `outputs` [samples][texts] minus the metric of `baseline`.

    Intervals are of a paired bootstrap over texts."""
    both = np.array([_statistics(metric, references, way) for way in (outputs, baseline)])
    names = list(_difference(metric, both.sum(axis=2)))

    def figures(sums: np.ndarray) -> np.ndarray:
        """Maps summed statistics [2, samples, S, resamples] to differences [names, resamples]."""
        drawn = [_difference(metric, resample) for resample in np.moveaxis(sums, -1, 0)]
        return np.array([[values[name] for values in drawn] for name in names])

    return dict(zip(names, estimates(np.moveaxis(both, 2, -1), figures), strict=True))


def _statistics(
    metric: SumMetric, references: Sequence[object], outputs: Sequence[Sequence[object]]
) -> list[list[np.ndarray]]:
    """Returns the metric's statistics [S] of each output, as lists [samples][texts]."""
    return [
        [metric.statistics(*pair) for pair in zip(references, sample, strict=True)]
        for sample in _as_read_by(metric, outputs)
    ]


def _as_read_by(
    metric: Callable, outputs: Sequence[Sequence[object]]
) -> Sequence[Sequence[object]]:
    """Returns outputs [samples][texts]; for a metric `of_samples`, [1][texts] of tuples."""
    if isinstance(metric, SumMetric) and metric.of_samples:
        return [list(zip(*outputs, strict=True))]
    return outputs


def _difference(metric: SumMetric, sums: np.ndarray) -> dict[str, float]:
    """Returns name -> the first way's value minus the second's, from sums [2, samples, S]."""
    first, second = (_mean_of([metric.values(sample) for sample in way]) for way in sums)
    return {name: first[name] - second[name] for name in first}


def _mean_of(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([values[name] for values in samples])) for name in samples[0]}
