"""Confidence intervals over texts: one bootstrap for all figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
_BATCH = 100  # resamples at a time, so that memory stays bounded


class Estimate(NamedTuple):
    """A figure computed from all texts, and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def interval(self, form: str = ".2f") -> str:
        """Returns both ends of the interval as text, such as '1.20 to 1.35'."""
        return f"{self.low:{form}} to {self.high:{form}}"


def estimates(
    values: np.ndarray, figures: Callable[[np.ndarray], np.ndarray]
) -> tuple[Estimate, ...]:
    """Returns several figures of sums over texts, with intervals; arguments as for `bootstrap`."""
    sums = values.sum(axis=-1, keepdims=True)
    columns = (figures(sums)[..., 0], *bootstrap(values, figures))
    return tuple(Estimate(*map(float, column)) for column in zip(*columns, strict=True))


def estimate(values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """Returns one figure of sums over texts, with its interval; arguments as for `bootstrap`."""
    return estimates(values, lambda sums: figure(sums)[None])[0]


def ratio(above: np.ndarray, below: np.ndarray) -> Estimate:
    """Returns sum(above) / sum(below), with its interval; both have one value per text, [texts]."""
    return estimate(np.stack([above, below]), lambda sums: sums[0] / sums[1])


def bootstrap(
    values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95 % percentile interval of a figure of sums (Efron, 1979; Koehn, 2004).

    `values` is [..., texts], and `figure` maps sums over texts to figures. Texts are drawn with
    replacement, as many as there are, with a fixed seed. All values of a text are drawn together,
    so that comparisons are paired. For a single text, both ends are its figure.
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
