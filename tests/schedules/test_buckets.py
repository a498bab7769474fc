"""Draft lengths and their costs, by hand: pytest tests/schedules/test_buckets.py"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.schedules import Confidence, Disco, Fixed, Guard, Heuristic, JointConfidence
from specdec.schedules.schedule import shortened, time_of, tokens_of
from specdec.types import Draft, Verdict

TIMES = (1.0, 2.0, 3.0)


def outcome(drafted, accepted) -> tuple[Draft, Verdict]:
    """Returns the outcome of a call, row by row."""
    drafted, accepted = jnp.array(drafted), jnp.array(accepted)
    tokens = jnp.zeros([len(drafted), 7], jnp.int32)
    return Draft(tokens, None, drafted), Verdict(accepted, jnp.zeros_like(accepted))


def test_a_draft_takes_its_steps_and_the_smallest_call_that_holds_it():
    times = time_of(0.1, TIMES, (0, 2, 5))
    np.testing.assert_allclose(times, [1, 2.1, 2.2, 3.3, 3.4, 3.5])
    assert time_of(0.0, (7.0,), (3,)) == [7, 7, 7, 7]


def test_a_draft_yields_what_is_kept_of_it_and_one_token_more():
    found = tokens_of(jnp.array([[0.5, 0.5, 1.0], [0.0, 1.0, 1.0]]))
    np.testing.assert_allclose(found, [[1, 1.5, 1.75, 2], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    "longest, buckets", [(1, (0, 1)), (2, (0, 2)), (3, (0, 2, 3)), (5, (0, 2, 5)), (9, (0, 2, 5))]
)
def test_buckets_end_with_the_longest_draft_of_use(longest, buckets):
    assert shortened((0, 2, 5), longest) == buckets
    fixed = Fixed(5, shorter=(0, 2), stop_at_end=True).up_to(longest)
    assert fixed == Fixed(buckets[-1], shorter=buckets[:-1], stop_at_end=True)
    guard = Guard(Fixed(5, shorter=(0, 2)), 0.1, TIMES).up_to(longest)
    assert guard.buckets == buckets and guard.v == TIMES[: len(buckets)]
    assert Confidence(0.5, buckets=(2, 5)).up_to(longest).init(2).tolist() == [buckets[-1]] * 2
    heuristic = Heuristic(3, (2, 5)).up_to(longest)
    assert heuristic.start == min(3, longest) and heuristic.buckets[-1] == buckets[-1]


def test_a_fixed_length_is_printed_as_it_is_written():
    assert repr(Fixed(3)) == "Fixed(gamma=3)"
    both = Fixed(3, stop_at_end=True, shorter=(0, 1))
    assert repr(both) == "Fixed(gamma=3, stop_at_end=True, shorter=(0, 1))"
    assert eval(repr(both)) == both


def test_two_more_after_success_and_one_fewer_after_failure():
    schedule = Heuristic(3, (1, 7))
    lengths = jnp.array([3, 3, 7, 6, 1, 4])
    after = schedule.update(lengths, *outcome([3, 3, 7, 6, 1, 0], [3, 2, 7, 6, 0, 0]))
    assert after.tolist() == [5, 2, 7, 7, 1, 4]


def guard(schedule, **fields) -> Guard:
    return Guard(schedule, 0.5, TIMES, **{"limit": 1.5, "horizon": 4} | fields)


def test_a_guard_adds_a_call_without_a_draft_unless_there_is_one():
    assert guard(Fixed(5, shorter=(2,))).buckets == (0, 2, 5)
    assert guard(Fixed(5, shorter=(0, 2))).buckets == (0, 2, 5)


def test_a_guard_counts_the_time_of_what_was_drafted_and_the_tokens_written():
    """Lengths 0 to 5 take 1, 2.5, 3, 4.5, 5 and 5.5; of the first token 1 + 0.5 * 4 is allowed."""
    schedule = guard(Fixed(5, shorter=(2,)))
    state = schedule.init(3)
    assert schedule.want(state).tolist() == [2, 2, 2], "just what may be spent"
    state = schedule.update(state, *outcome([2, 0, 5], [1, 0, 4]))
    np.testing.assert_allclose(state.spent, [3, 1, 5.5])
    assert state.tokens.tolist() == [2, 1, 5]
    # 3 + 2 - 3, 2 + 2 - 1 and 6 + 3 - 5.5 are left.
    assert schedule.want(state).tolist() == [0, 2, 2]
    dear = guard(Fixed(5, shorter=(2,)), prefill=(2.0, 5.0))
    assert dear.init(1).spent.tolist() == [3]
    assert dear.want(dear.init(1)).tolist() == [0], "1 + 0.5 * (2 + 4) - 3 is left"


@pytest.mark.parametrize("prefill", [(True, 2.0), (1.0,), (2.0, 1.0), (-1.0, 1.0), [1.0, 2.0]])
def test_times_of_prefills_are_two_numbers_that_do_not_fall(prefill):
    with pytest.raises(ValueError, match="Guard.prefill is .*; give the target's prefill time and"):
        guard(Fixed(5, shorter=(2,)), prefill=prefill)


def test_a_guard_wants_no_more_than_its_schedule():
    schedule = guard(Heuristic(1, (2, 5)), limit=9.0)
    state = schedule.init(2)
    assert schedule.want(state).tolist() == [1, 1]
    state = schedule.update(state, *outcome([1, 1], [1, 0]))
    assert schedule.want(state).tolist() == [3, 1], "which has learned as well"


def test_a_guarded_rule_goes_on_from_what_it_has_seen():
    """The second token of 0.6 leaves a joint probability of 0.36."""
    schedule = guard(JointConfidence(0.5, buckets=(2, 5)))
    seen = jnp.array([[0.6, 0.4]]), jnp.array([0])
    carry, stopped = schedule.stop((), schedule.init(1), jnp.int32(0), *seen)
    assert stopped.tolist() == [False] and carry.spent.tolist() == [0]
    _, stopped = schedule.stop((), carry, jnp.int32(1), *seen)
    assert stopped.tolist() == [True]


def test_a_guard_has_the_tables_and_the_rules_of_its_schedule():
    disco = Disco(0.5, buckets=(2, 5))
    assert guard(disco).tables() == disco.tables() != {}
    assert guard(disco).stops_within and guard(disco).replayable and not guard(disco).cuts
    assert guard(Fixed(5, shorter=(2,))).tables() == {}
    fixed = guard(Fixed(5, shorter=(2,)))
    assert not fixed.stops_within and not fixed.cuts and fixed.replayable
