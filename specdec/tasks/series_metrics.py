"""Metrics of predicted series, of all samples of a series together.

Definitions are those of GluonTS that Chronos uses (Ansari et al. 2024, 2403.07815, appendix D).
Values that are missing in a target do not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec.tasks.metrics import SumMetric


class Future(NamedTuple):
    """The target of a series, as its metrics need it."""

    values: np.ndarray  # [N], NaN where one is missing
    naive_error: float  # mean |difference| of context values that are one season apart; NaN if none


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def quantiles(
    samples: ArrayLike | Sequence[np.ndarray], levels: Sequence[float] = LEVELS
) -> np.ndarray:
    """Returns [levels, N], quantiles of sampled series, linear between samples.

    Args:
      samples: [samples, N].
      levels: between 0 and 1.
    """
    return np.quantile(np.asarray(samples, float), levels, axis=0)


@dataclasses.dataclass(frozen=True)
class WeightedQuantileLoss(SumMetric[Future, Sequence[np.ndarray]]):
    """Twice the quantile loss of all values over the sum of their sizes, mean over levels.

    Args:
      levels: the levels of the quantiles.
    """

    levels: tuple[float, ...] = LEVELS
    of_samples: ClassVar[bool] = True

    def statistics(self, target: Future, prediction: Sequence[np.ndarray]) -> np.ndarray:
        """Returns [1 + levels]: the sum of the values' sizes, and each level's loss."""
        there = ~np.isnan(target.values)
        values = target.values[there]
        behind = values - quantiles(prediction, self.levels)[:, there]
        levels = np.array(self.levels)[:, None]
        losses = 2 * np.maximum(levels * behind, (levels - 1) * behind)
        return np.array([np.abs(values).sum(), *losses.sum(axis=1)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"wql": float(sums[1:].mean() / sums[0])}

    @property
    def signature(self) -> str:
        return f"levels:{','.join(map(str, self.levels))}|weights:sum of sizes"


@dataclasses.dataclass(frozen=True)
class Mase(SumMetric[Future, Sequence[np.ndarray]]):
    """Mean absolute scaled error of the median (Hyndman and Koehler, 2006), mean over series.

    A series' error is divided by that of the naive prediction in its context, which repeats the
    value of one season before. A series where that is 0 or unknown does not count.
    """

    of_samples: ClassVar[bool] = True

    def statistics(self, target: Future, prediction: Sequence[np.ndarray]) -> np.ndarray:
        """Returns [2]: the number 1 if the series counts, and its scaled error."""
        errors = np.abs(target.values - quantiles(prediction, [0.5])[0])
        errors = errors[~np.isnan(errors)]
        if not len(errors) or not target.naive_error > 0:
            return np.zeros(2)
        return np.array([1, errors.mean() / target.naive_error])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"mase": float(sums[1] / sums[0]) if sums[0] else float("nan")}

    @property
    def signature(self) -> str:
        return "median|mean over series"


wql, mase = WeightedQuantileLoss(), Mase()
