"""The test of two samples has the size and the power that it states: pytest
tests/testing/test_two_samples.py"""

from __future__ import annotations

import numpy as np
import pytest

from specdec.testing import compare_samples

CELLS, ROWS = 8, 4000
EVEN = np.full(CELLS, 1 / CELLS)


def draws(random, law, rows=ROWS):
    return random.choice(CELLS, rows, p=law)


def test_samples_of_one_distribution_pass_with_uniform_p_values():
    random = np.random.default_rng(0)
    found = [compare_samples(draws(random, EVEN), draws(random, EVEN)) for _ in range(100)]
    assert all(one.passed and one.degrees == CELLS - 1 for one in found)
    # A mean of 100 uniform numbers has a standard deviation of 0.03.
    assert 0.41 < np.mean([one.p_value for one in found]) < 0.59


def test_a_distance_of_detectable_tv_is_seen_and_a_small_one_is_not():
    random = np.random.default_rng(1)
    seen = compare_samples(draws(random, EVEN), draws(random, EVEN)).detectable_tv
    for share, passed in ((1.05, 0), (0.4, 40)):
        shift = share * seen * np.tile([1, -1], CELLS // 2) / CELLS * 2
        pairs = [(draws(random, EVEN + shift), draws(random, EVEN)) for _ in range(40)]
        assert sum(compare_samples(*pair).passed for pair in pairs) == passed


def test_groups_of_equal_size_take_degrees_of_freedom():
    random = np.random.default_rng(2)

    def sample():
        return np.concatenate([draws(random, EVEN), CELLS + draws(random, EVEN)])

    found = [compare_samples(sample(), sample(), groups=2) for _ in range(100)]
    assert {one.degrees for one in found} == {2 * CELLS - 2}
    assert 0.4 < np.mean([one.p_value for one in found]) < 0.6


def test_rare_cells_are_pooled_and_samples_of_one_cell_have_nothing_to_compare():
    rare = np.arange(ROWS) % 1000  # each cell four times
    assert compare_samples(rare, rare).degrees < ROWS / 10
    assert compare_samples(np.zeros(50, int), np.zeros(50, int)).passed


def test_samples_of_two_sizes_are_refused():
    with pytest.raises(ValueError, match="equally many"):
        compare_samples(np.zeros(3, int), np.zeros(4, int))
