"""The signals of a draft token, worked out by hand: pytest tests/schedules/test_signals.py"""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdec.schedules.schedule import TOP, signals


def test_signals_of_a_few_tokens():
    """Entropy of (1/2, 1/4, 1/4, 0) is 1.5 ln 2; there are fewer than `TOP` probabilities."""
    probs = np.array([[0.25, 0.5, 0.25, 0], [1, 0, 0, 0]], np.float32)
    found = signals(probs, np.array([2, 1]), 3)
    assert found.confidence.tolist() == [0.25, 0.0] and found.index == 3
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2), 0.0])
    assert TOP == 10 and found.top.tolist() == [[0.5, 0.25, 0.25] + [0] * 7, [1] + [0] * 9]


def test_only_the_greatest_probabilities_are_kept():
    probs = np.arange(1, 13, dtype=np.float32) / 78
    found = signals(probs, np.int32(4), np.int32(0))
    assert found.top.tolist() == (np.arange(12, 2, -1, dtype=np.float32) / 78).tolist()
    assert float(found.confidence) == np.float32(5) / np.float32(78)
    expected = -sum(p * math.log(p) for p in np.arange(1, 13) / 78)
    assert float(found.entropy) == pytest.approx(expected, rel=1e-6)
