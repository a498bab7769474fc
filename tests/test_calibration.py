"""A threshold that keeps a risk: pytest tests/test_calibration.py"""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.common.calibration import calibrate, p_value


def binomial_tail(count: int, texts: int, p: float) -> float:
    return sum(math.comb(texts, k) * p**k * (1 - p) ** (texts - k) for k in range(count + 1))


@pytest.mark.parametrize("count, texts, risk", [(0, 50, 0.1), (3, 100, 0.1), (20, 200, 0.2)])
def test_the_smaller_bound_counts(count, texts, risk):
    mean = count / texts
    divergence = (1 - mean) * math.log((1 - mean) / (1 - risk))
    divergence += mean * math.log(mean / risk) if mean else 0
    right = min(math.exp(-texts * divergence), math.e * binomial_tail(count, texts, risk))
    assert p_value(mean, texts, risk) == pytest.approx(right, rel=1e-9)


def test_a_mean_at_the_risk_shows_nothing():
    assert p_value(0.1, 10**6, 0.1) == 1.0


def test_tests_stop_at_the_first_threshold_that_is_not_shown():
    """One that would pass by chance behind it does not count."""
    losses = {0.9: np.zeros(200), 0.8: np.full(200, 0.5), 0.7: np.zeros(200)}
    assert calibrate(losses, risk=0.1, confidence=0.95) == 0.9
    assert calibrate({0.9: np.full(200, 0.09)}, risk=0.1, confidence=0.95) is None


def test_the_risk_is_kept_as_often_as_is_said():
    """2,000 calibrations on 100 texts, where all thresholds but the first are just too bold. At
    most 5 % may choose one of them; 7 % would be seen with probability above 0.99."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        bold = {x: generator.binomial(1, 0.101, 100).astype(float) for x in (0.7, 0.6, 0.5)}
        chosen = calibrate({0.9: np.zeros(100), **bold}, risk=0.1, confidence=0.95)
        wrong += chosen != 0.9
    assert 0 < wrong <= 0.05 * 2000 + 3 * math.sqrt(2000 * 0.05 * 0.95)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"risk": 0}, "calibrate.risk is 0; give a number between 0 and 1"),
        ({"confidence": 1}, "calibrate.confidence is 1; give a number"),
        ({"losses": {0.5: np.array([2.0])}}, "losses of threshold 0.5 are not 0 to 1"),
        ({"losses": {0.5: np.array([])}}, "or missing; give one a text"),
    ],
)
def test_mistakes(given, says):
    with pytest.raises(ValueError, match=says):
        calibrate(**{"losses": {0.5: np.zeros(3)}, "risk": 0.1, "confidence": 0.9} | given)
