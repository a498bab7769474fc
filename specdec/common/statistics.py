"""Confidence intervals over texts: one bootstrap for all figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
_BATCH = 100  # resamples at a time, so that memory stays bounded


class Estimate(NamedTuple):
    """A figure of all texts, and the ends of its 95 % interval over texts."""

    value: float
    low: float
    high: float

    def interval(self, form: str = ".2f") -> str:
        """Returns both ends as text, each in a format."""
        return f"{self.low:{form}} to {self.high:{form}}"


def estimates(
    values: np.ndarray, figures: Callable[[np.ndarray], np.ndarray]
) -> tuple[Estimate, ...]:
    """Returns several figures of sums over texts, each with its interval; see `bootstrap`."""
    sums = values.sum(axis=-1, keepdims=True)
    columns = (figures(sums)[..., 0], *bootstrap(values, figures))
    return tuple(Estimate(*map(float, column)) for column in zip(*columns, strict=True))


def estimate(values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """Returns a figure of sums over texts, and its interval; see `bootstrap`."""
    return estimates(values, lambda sums: figure(sums)[None])[0]


def ratio(above: np.ndarray, below: np.ndarray) -> Estimate:
    """Returns the ratio of two sums over texts [texts], which are paired."""
    return estimate(np.stack([above, below]), lambda sums: sums[0] / sums[1])


def bootstrap(
    values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95 % percentile interval of a figure of sums (Efron, 1979; Koehn, 2004).

    Texts are drawn with replacement, as many as there are. All values of a text are drawn together,
    so that comparisons are paired. The draws have a fixed seed. For a single text, both ends are
    its figure.
    """
    from scipy import stats

    def resampled(drawn: np.ndarray, axis: int) -> np.ndarray:
        return figure(values[..., drawn].sum(axis=axis))

    count = values.shape[-1]
    if count == 1:
        only = figure(values)[..., 0]
        return only, only
    interval = stats.bootstrap(
        (np.arange(count),),
        resampled,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return interval.low, interval.high
