"""What the checks of parts ask for, without running it: pytest tests/testing/test_part_checks.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import row_keys
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import Bench, Constant, check_drafter, part_checks
from specdec.verifiers import SpeculativeSampling

BENCH = Bench.create(max_length=6)


class Stopped(Exception):
    pass


def test_rows_are_eight_samples_of_each_example():
    plan = BENCH.plan(SpeculativeSampling(), Fixed(2), Sampling())
    for first, named in ((0, {}), (5, {"first": 5})):
        keys, inputs = BENCH.given(plan, 4, **named)
        numbers = [divmod(number, 8) for number in range(first, first + 4)]
        expected = row_keys(1, *map(jnp.array, zip(*numbers, strict=True)))
        np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(expected))
        assert inputs.tolist() == [[3, 1]] * 4


def test_reported_distributions_are_checked_first_and_for_the_longest_draft(monkeypatch):
    asked = []

    def check(bench, schedule, sampling):
        asked.append((bench.drafter, schedule, sampling))
        raise Stopped

    monkeypatch.setattr(part_checks, "check_proposals", check)
    with pytest.raises(Stopped):
        check_drafter(Constant(3), gammas=(2, 5, 1), say=lambda line: None)
    assert asked == [(Constant(3), Fixed(5), Sampling())]


def test_the_drafts_of_all_rows_are_tallied(monkeypatch):
    plan = BENCH.plan(SpeculativeSampling(), Fixed(2), Sampling())
    given = []
    monkeypatch.setattr(part_checks, "tally", lambda *args, plan: given.append((args, plan)) or 7)
    monkeypatch.setattr(part_checks, "proposals", lambda *args: args)
    assert part_checks.check_proposals(BENCH, Fixed(2), Sampling(), 3) == ([7], plan.sources)
    [((params, keys, inputs), used)] = given
    assert params is BENCH.params and used == plan
    expected = BENCH.given(plan, 3)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(expected[0]))
    assert inputs.tolist() == expected[1].tolist()
