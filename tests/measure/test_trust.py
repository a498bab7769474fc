"""How far timings can be trusted, in words: pytest tests/measure/test_trust.py"""

import pytest

from specdec.measure.file import Generation, Timing
from specdec.measure.trust import Spread, lines


def generation(seconds: float, calls: int = 2) -> Generation:
    made = {"tokens": [2] * 4, "drafted": [1] * calls, "accepted": [1] * calls}
    return Generation(**made, mode="alone", text=0, repeat=0, seconds=seconds)


def test_the_spread_is_of_work_that_is_the_same():
    """A part in steps of 1 and 2 s, and a text in 10 and 30 s; a third text took other calls."""
    parts = [Timing("prefill", 0, 0, 4.0, 4), Timing("prefill", 0, 1, 8.0, 4)]
    texts = [generation(10.0), generation(30.0), generation(1e9, calls=3)]
    found = Spread.of([*parts, *texts])
    # Multiples of 1.5 and 20: 2/3, 4/3, 1/2, 3/2.
    assert found == (pytest.approx(0.55), pytest.approx(1.45), 4)
    assert Spread.of(texts[1:]) is None


@pytest.mark.parametrize(
    "load, high, busy, meaning",
    [
        (0.1, 1.1, False, None),
        (None, 1.1, False, None),
        (13.0, 1.1, True, "the interval of the speed-up holds"),
        (0.1, 1.5, True, "the interval of the speed-up holds"),
        (13.0, 2.5, True, "trust no figure here"),
    ],
)
def test_a_busy_machine_is_named(load, high, busy, meaning):
    first, *rest = lines(load, Spread(1.0, high, 10), cores=2)
    assert first.startswith("machine is busy" if busy else "machine  ")
    assert ("load average" in first) == (load is not None)
    assert f"1.00 to {high:.2f} times its median (middle 80 % of 10 timings)" in first
    assert [meaning in line for line in rest] == [True] * (meaning is not None)


def test_one_timing_says_that_the_spread_is_not_known():
    first, second = lines(0.1, None, cores=1)
    assert "0.1 on 1 core before, nothing was timed twice" in first
    assert "more texts or repeats" in second
