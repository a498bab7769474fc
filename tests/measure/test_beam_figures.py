"""`specdec bench --num_beams`: its figures, on hand-made records and outputs."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.beam_search import BeamOutput, BeamTrace
from specdec.decoding.draft_beams import DraftBeams
from specdec.measure import printed
from specdec.measure.file import Generation, Timing, fields_of, record
from specdec.measure.measurement import _generation
from specdec.measure.parts import key_of
from specdec.measure.summary import summarize
from specdec.testing import TableTarget

TABLE = TableTarget(9)
PLAN = BeamPlan(TABLE, 2, T5XBeams(), 12, DraftBeams(TABLE, 3, 2))
PARTS = {  # seconds of one call
    "memory_read": 1.0,
    "alone prefill": 5.0,
    "prefill": 7.0,
    "alone 2": 10.0,
    "target 8": 15.0,
    "draft 4": 2.0,
    "draft 3": 1.0,
}
BEAMS = [[3, 4, 1], [3, 1]]


def generation(mode, seconds, accepted, drafted, beams=BEAMS):
    given = {"accepted": accepted, "drafted": drafted, "beams": beams, "seconds": seconds}
    return Generation(tokens=BEAMS[0], mode=mode, text=0, repeat=0, **given)


def summary(seconds, beams=BEAMS):
    """A text of seven steps, which are three calls with a draft."""
    records = [Timing(key_of(part), 0, 0, 8 * one, 8) for part, one in PARTS.items()]
    records += [
        generation("alone", 5 + 7 * 10.0, [0] * 7, [0] * 7),
        generation("speculative", seconds, [2, 1, 1], [2, 2, 1], beams),
        generation("greedy", 25.0, [2], [2], ()),
    ]
    told = {"gamma": PLAN.gamma, "same_output": PLAN.same_output, "beams": PLAN.beams}
    return summarize(records, parts=PLAN.parts, **told)


def test_a_search_that_is_the_sum_of_its_parts_is_predicted_exactly():
    found = summary(7 + 3 * (2 + 1 + 15.0))
    assert found.prediction and found.greedy
    assert found.prediction.these_texts == pytest.approx(75 / 61)
    assert found.prediction.measured_over_predicted == pytest.approx(1)
    assert (found.tau, found.alpha) == (7 / 3, 4 / 5)
    assert (found.identical, found.texts) == (1, 1)
    assert (found.greedy.speedup.over_texts.value, found.greedy.tau) == (3, 3)
    written = json.loads(json.dumps(found.record()))
    assert written["beams"] == 2 and written["greedy"]["speedup"]["ratio"] == 3
    text = "\n".join(printed.lines(found))
    for line in ("plain beams", "drafted beams", "drafted greedy", "steps per call"):
        assert f"\n{line}" in text
    assert "of the target, one text" in text and "on 8 tokens" in text


@pytest.mark.parametrize("seconds, says", [(50.0, "1.50 times"), (100.0, "0.75 times")])
def test_the_first_line_says_which_is_faster(seconds, says):
    hardware = {"backend": "cpu", "device": "cpu", "cpu": "A", "cores": 2, "features": []}
    found = printed.sentence(summary(seconds), PLAN, hardware)
    assert found.startswith(f"{says} as fast as plain beams")
    assert ("slower than without a draft" in found) == (seconds > 75)
    assert "1 of 1 texts the same beams, 2 beams, drafts of 3 beams and 2 steps" in found
    best = dataclasses.replace(PLAN, best_only=True)
    assert "the same best beam, " in printed.sentence(summary(seconds), best, hardware)


def test_another_second_beam_is_another_output():
    assert summary(50.0, [BEAMS[0], [3, 5, 1]]).identical == 0


def test_a_record_has_the_beams_and_the_steps_of_each_call():
    trace = BeamTrace(jnp.array([[3, 2, 1, 0]]), jnp.array([3]), jnp.array([False]))
    tokens = np.array([[[3, 4, 1, 0], [3, 1, 0, 0], [0, 0, 0, 0]]])
    length = np.array([[3, 2, 0]])
    output = BeamOutput(tokens, length, np.zeros([1, 3]), length > 0, trace)
    made = Generation.of_search(output, 0, 2, text=5, repeat=0, seconds=1.0)
    assert (made.tokens, made.beams) == ([3, 4, 1], BEAMS)
    assert (made.drafted, made.accepted, made.steps) == ([2, 2, 0], [2, 1, 0], 6)
    assert record(json.loads(json.dumps(fields_of(made)))) == made
    workload: Any = SimpleNamespace(plan=PLAN)
    assert _generation(workload, output, text=5, repeat=0, seconds=1.0) == made
