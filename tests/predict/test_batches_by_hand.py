"""Predictions of batches and of schedules, worked out by hand: pytest tests/predict"""

from __future__ import annotations

import numpy as np
import pytest

from specdec.drafters import Autoregressive
from specdec.measure.parts import key_of
from specdec.plan import Plan
from specdec.predict import predicted_speedup, tuning
from specdec.predict.costs import Costs
from specdec.predict.schedule_replay import Replayed
from specdec.predict.tuning import Candidate, Result, Tried
from specdec.sampling import Greedy
from specdec.schedules import Confidence, Fixed
from specdec.testing import TableTarget
from specdec.verifiers import GreedyMatch

TARGET = TableTarget(6)
PLAN = Plan(
    TARGET, Autoregressive(TARGET, Greedy()), GreedyMatch(), Fixed(2), Greedy(), max_length=8
)
CALLS = {"target 1": 10.0, "target 2": 11.0, "target 3": 12.0, "draft 2": 2.0, "draft 1": 1.0}
COSTS = Costs({key_of(x): y for x, y in CALLS.items()}, 7.0, 5.0, 10.0, "by hand")
TEXTS = [[2, 0, 1], [1], [2, 2], [0, 0, 0]]  # tokens that each call accepts


def replayed(depth: np.ndarray | None = None) -> Replayed:
    calls = np.array([len(row) for row in TEXTS])
    accepted = np.zeros([len(TEXTS), 8], np.int32)
    for row, values in zip(accepted, TEXTS, strict=True):
        row[: len(values)] = values
    made = np.arange(8)[None] < calls[:, None]
    tokens = np.array([sum(row) + len(row) for row in TEXTS])
    return Replayed(tokens, calls, np.where(made, 2, 0), accepted, None, depth)


@pytest.mark.parametrize(
    "rows, alone, taken",
    [
        # 6, 2, 6 and 3 tokens by as many steps of 10 s; 3, 1, 2 and 3 calls of 2 + 1 + 12 s.
        (1, 4 * 5 + 17 * 10, 4 * 7 + 9 * 15),
        (2, 2 * 5 + (6 + 6) * 10, 2 * 7 + (3 + 3) * 15),  # the longest of each two
        (4, 5 + 6 * 10, 7 + 3 * 15),
    ],
)
def test_a_batch_is_done_when_its_slowest_text_is(rows, alone, taken):
    found = predicted_speedup.predict(PLAN, replayed(), {2: COSTS}, 4, alpha=None, rows=rows)
    assert found.speedup is not None and found.speedup.value == pytest.approx(alone / taken)
    assert (found.texts, found.tokens, found.calls) == (4, 17, 9)
    assert found.tokens_per_call.value == pytest.approx(17 / 9)


def test_layers_are_of_the_calls_that_were_made():
    """Of nine calls; the other places are of no call."""
    depth = np.full([4, 8], 99)
    for row, values in zip(depth, [[4, 2, 6], [8], [6, 6], [4, 4, 5]], strict=True):
        row[: len(values)] = values
    found = predicted_speedup.predict(PLAN, replayed(depth), {2: COSTS}, 4, alpha=None)
    assert found.layers == pytest.approx((4 + 2 + 6 + 8 + 6 + 6 + 4 + 4 + 5) / 9)


def test_the_table_of_a_search():
    """The first and third text decide, and the figures are those of the other two."""
    given = [
        ("fixed", Fixed(2), [5, 6, 5, 6], 2.25),
        ("fixed", Fixed(3), [6, 5, 6, 5], 2.5),
        ("confidence", Confidence(0.4), [3, 5, 3, 5], 2.75),
        ("confidence", Confidence(0.6), [4, 4, 4, 4], 3.0),
    ]
    tried = [
        Tried("", Candidate(kind, None, schedule), tokens, np.array(seconds))
        for kind, schedule, seconds, tokens in given
    ]
    even = np.array([True, False, True, False])
    found = Result.of("", tried, np.full(4, 10.0), np.full(4, 2.0), even, ~even)
    assert list(tuning.lines(found)) == [
        "predicted   95 % interval  tokens/call  schedule",
        f"     2.50    2.50 to 2.50         3.00  {Confidence(0.6)}",
        "     2.00    2.00 to 2.00         2.50  Fixed(gamma=3)",
        "     5.00    5.00 to 5.00               an oracle of refusals",
        f"best     {Confidence(0.4)}: 2.00 times as fast as the target alone (2.00 to 2.00)",
        "         +20.0% (+20.0% to +20.0%) over Fixed(gamma=2), 25% of what an oracle would gain; "
        "25.0% behind the fastest on these texts",
    ]


def test_costs_in_steps_of_the_target():
    """One more draft token takes 1 s, and a step of the target 10."""
    assert tuning.units(PLAN, COSTS, (1, 2)) == (0.1, (1.1, 1.2))
