"""Intervals: pytest tests/test_statistics.py"""

import numpy as np
import pytest

from specdec.common.statistics import bootstrap, estimates, ratio


def test_an_interval_has_ninety_five_percent():
    """Of a mean of 2,000 numbers, 1.96 standard errors to each side (90 % are 1.64)."""
    values = np.random.default_rng(1).normal(size=2000)
    low, high = bootstrap(values, lambda sums: sums / values.size)
    error = values.std() / np.sqrt(values.size)
    # 2,000 resamples place an end to 0.06 errors; an interval of 90 % is 0.32 off.
    assert (values.mean() - low) / error == pytest.approx(1.96, abs=0.15)
    assert (high - values.mean()) / error == pytest.approx(1.96, abs=0.15)  # as above


def test_texts_are_drawn_with_all_their_values():
    """The ratio of two sums that are proportional text by text is certain."""
    values = np.random.default_rng(0).exponential(size=50)
    low, high = bootstrap(np.stack([3 * values, values]), lambda sums: sums[0] / sums[1])
    assert low == pytest.approx(3) and high == pytest.approx(3)


def test_one_text_is_its_own_interval():
    assert bootstrap(np.array([[4.0], [2.0]]), lambda sums: sums[0] / sums[1]) == (2, 2)


def test_an_estimate_has_the_figure_of_all_texts():
    above, below = np.array([3.0, 1.0, 4.0]), np.array([1.0, 1.0, 2.0])
    found = ratio(above, below)
    assert found.value == 2 and found.low < 2 < found.high
    ends = bootstrap(np.stack([above, below]), lambda sums: sums[0] / sums[1])
    assert found[1:] == ends and found.interval() == f"{ends[0]:.2f} to {ends[1]:.2f}"


def test_several_figures_have_an_estimate_each():
    values = np.array([[1.0, 2.0], [3.0, 3.0]])
    first, second = estimates(values, lambda sums: sums / 2)
    assert (first.value, second) == (1.5, (3, 3, 3)) and (first.low, first.high) == (1, 2)
