"""Chooses the threshold of a lossy mode that keeps a risk, on texts, with a stated confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from specdec.common.values import InsideUnit, check


def calibrate(
    losses: Mapping[float, np.ndarray], *, risk: float, confidence: float
) -> float | None:
    """Returns the boldest threshold whose expected loss is at most `risk`, with this confidence.

    The method is learn then test (Angelopoulos et al. 2021, 2110.01052) in a fixed order, as in
    CALM (Schuster et al. 2022, section 4.1). Thresholds are tested from the largest, which is the
    most careful one, to the first that cannot be shown to keep the risk. The returned threshold
    exceeds the risk with probability at most 1 - confidence over draws of the texts. Testing
    several thresholds costs nothing.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        check(f"calibrate.{name}", value, InsideUnit)
    chosen = None
    for threshold in sorted(losses, reverse=True):
        values = np.asarray(losses[threshold], float)
        if not values.size or values.min() < 0 or values.max() > 1:
            raise ValueError(
                f"losses of threshold {threshold} are not 0 to 1, or of no text; give such"
            )
        if p_value(float(values.mean()), len(values), risk) > 1 - confidence:
            break
        chosen = threshold
    return chosen


def p_value(mean: float, texts: int, risk: float) -> float:
    """Returns the p-value of the hypothesis that the expected loss, 0 to 1, is above `risk`.

    It is the smaller one of Hoeffding's and Bentkus' bound (2110.01052, proposition 1).
    """
    if mean >= risk:
        return 1.0
    hoeffding = math.exp(-texts * _divergence(mean, risk))
    bentkus = math.e * _binomial_at_most(math.ceil(texts * mean), texts, risk)
    return min(1.0, hoeffding, bentkus)


def _divergence(a: float, b: float) -> float:
    """Returns the divergence of two Bernoulli distributions, in nats."""
    tails = (1 - a) * math.log((1 - a) / (1 - b))
    return tails + (a * math.log(a / b) if a else 0.0)


def _binomial_at_most(count: int, texts: int, probability: float) -> float:
    log_odds = (math.log(probability), math.log1p(-probability))
    terms = (
        math.lgamma(texts + 1)
        - math.lgamma(k + 1)
        - math.lgamma(texts - k + 1)
        + k * log_odds[0]
        + (texts - k) * log_odds[1]
        for k in range(count + 1)
    )
    return math.fsum(math.exp(term) for term in terms)
