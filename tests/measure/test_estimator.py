"""Medians and sums of records, by hand: pytest tests/measure/test_estimator.py"""

from __future__ import annotations

import pytest

from specdec.measure import estimator
from specdec.measure.estimator import MeasuredParts, costs_of
from specdec.measure.file import Generation, Timing
from specdec.measure.parts import READ_BYTES, key_of
from specdec.types import Part


def generation(mode="speculative", text=0, seconds=1.0, tokens=2, **fields) -> Generation:
    kept = {"tokens": [2] * tokens, "drafted": [3, 0], "accepted": [1, 0], "repeat": 0}
    return Generation(mode=mode, text=text, seconds=seconds, **kept | fields)


def timed(part: str, *seconds: float, steps: int = 4) -> list[Timing]:
    return [Timing(key_of(part), 0, i, steps * one, steps) for i, one in enumerate(seconds)]


TIMINGS = [
    *timed("memory_read", 4.0, 2.0, 8.0, steps=1),
    *timed("prefill", 5.0, 1.0, 3.0),
    *timed("alone prefill", 2.0, 1.0, 9.0),
    *timed("alone 1", 7.0, 6.0, 20.0),
]


def test_parts_are_medians_of_one_call_and_memory_is_read_at_its_best():
    elsewhere = generation(split="validation")
    found = MeasuredParts.of([generation("alone"), *TIMINGS, elsewhere, generation()])
    assert (found.costs.prefill, found.costs.prefill_alone, found.costs.step) == (3, 2, 7)
    assert found.bandwidth == READ_BYTES / 2
    assert [len(x) for x in (found.alone, found.speculative, found.elsewhere)] == [1, 1, 1]
    assert found.by_turns == 1


@pytest.mark.parametrize("empty", ["alone", "speculative"])
def test_a_mode_that_wrote_nothing_is_an_error(empty):
    records = [generation(mode, tokens=2 * (mode != empty)) for mode in ("alone", "speculative")]
    with pytest.raises(ValueError, match="no token was generated"):
        MeasuredParts.of([*records, *TIMINGS])


def test_texts_are_medians_over_repeats_and_summed():
    times = {4: [1.0, 9.0, 2.0], 1: [5.0, 3.0]}
    runs = [generation(text=text, seconds=one) for text, x in times.items() for one in x]
    assert estimator.medians(runs, estimator.seconds) == {1: 4, 4: 2}
    assert list(estimator.medians(runs, estimator.seconds)) == [1, 4]
    assert estimator.total(runs, estimator.seconds) == 6
    assert estimator.total(runs, estimator.steps) == estimator.total(runs, estimator.calls) == 4


def test_calls_are_listed_one_after_the_other():
    plain = [generation(), generation()]
    assert estimator.drafted(plain) == [3, 0, 3, 0]
    assert estimator.depths(plain) is None
    told = [generation(depths=[2, 6]), generation(depths=[6, 6])]
    assert estimator.depths(told) == [2, 6, 6, 6]


def test_what_drafts_takes_longer_in_a_turn_and_the_target_does_not():
    known = {"prefill": 1.0, "alone prefill": 1.0, "alone 1": 10.0}
    known |= {"draft 2": 2.0, "draft 1": 1.0, "target 3": 12.0}
    seconds = {key_of(name): one for name, one in known.items()}
    parts = Part("draft", 2, 1), Part("draft", 1, 0.5), Part("target", 3, 1)
    assert costs_of(seconds).iteration(parts, 2) == (2.5, 12, 10, 2)
    seconds[key_of("turn of 1 x draft 2, 1 x draft 1, 1 x target 3")] = 18.0
    found = costs_of(seconds).iteration(parts, 2)
    assert (found.draft, found.verify) == (2 * 2.5, 12), "6 seconds for 3"
    assert (found.seconds, found.cost_ratio, found.verify_cost) == (17, 0.25, 1.2)
