"""How far a figure of some texts may be from that of others: one bootstrap for all figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
_BATCH = 100  # resamples at a time, so that memory stays bounded


class Interval(NamedTuple):
    """The ends of a 95 % interval, each shaped as the figure."""

    low: np.ndarray
    high: np.ndarray


def bootstrap(values: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """The 95 % percentile interval of a figure of sums over texts (Efron, 1979; Koehn, 2004).

    Texts are drawn with replacement, as many as there are, all values of a text together: what is
    compared is paired. The draws have a fixed seed. The ends of a single text are its figure.

    Args:
      values: [..., texts] what each text adds to the sums.
      figure: of sums [..., resamples], with resamples as its last axis too.
    """
    from scipy import stats

    def resampled(drawn: np.ndarray, axis: int) -> np.ndarray:
        return figure(values[..., drawn].sum(axis=axis))

    count = values.shape[-1]
    if count == 1:
        only = figure(values)[..., 0]
        return Interval(only, only)
    found = stats.bootstrap(
        (np.arange(count),),
        resampled,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return Interval(*found.confidence_interval)
