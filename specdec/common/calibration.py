"""Chooses a lossy mode's threshold on texts, so that its risk is bounded with confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from specdec.common.values import InsideUnit, check


def calibrate(
    losses: Mapping[float, np.ndarray], *, risk: float, confidence: float
) -> float | None:
    """Returns the smallest threshold whose expected loss is at most `risk`, with this confidence.

    The method is learn then test (Angelopoulos et al. 2021, 2110.01052) in a fixed order, as in
    CALM (Schuster et al. 2022, section 4.1). `losses` maps each threshold to one loss per text,
    from 0 to 1. Thresholds are tested from the largest, which is the most careful one, to the first
    that fails. The result, None if all fail, exceeds the risk with probability at most 1 -
    confidence over draws of the texts. Testing several thresholds does not weaken this bound.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        check(f"calibrate.{name}", value, InsideUnit)
    chosen = None
    for threshold in sorted(losses, reverse=True):
        values = np.asarray(losses[threshold], float)
        if not values.size or values.min() < 0 or values.max() > 1:
            raise ValueError(
                f"losses of threshold {threshold} are not 0 to 1, or missing; give one a text"
            )
        if p_value(float(values.mean()), len(values), risk) > 1 - confidence:
            break
        chosen = threshold
    return chosen


def p_value(mean: float, texts: int, risk: float) -> float:
    """Returns the p-value of the hypothesis that the expected loss, 0 to 1, is above `risk`.

    `mean` is that of `texts` texts. The smaller one of Hoeffding's and Bentkus' bound is used
    (2110.01052, proposition 1).
    """
    if mean >= risk:
        return 1.0
    from scipy import special, stats

    divergence = special.rel_entr(mean, risk) + special.rel_entr(1 - mean, 1 - risk)
    hoeffding = math.exp(-texts * divergence)
    bentkus = math.e * stats.binom.cdf(math.ceil(texts * mean), texts, risk)
    return min(1.0, hoeffding, float(bentkus))
