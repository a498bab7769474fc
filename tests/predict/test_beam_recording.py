"""Steps per target call of drafted beams, predicted from one search without drafts."""

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams, T5XBeams
from specdec.decoding.beam_search import beam_search
from specdec.decoding.draft_beams import DraftBeams
from specdec.testing import TableTarget
from specdec.types import Params

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "studies"))
import beam_recording  # noqa: E402
from beam_recording import record, steps_and_calls  # noqa: E402

TABLE = TableTarget(vocab_size=19, classes=5, scale=2.0)
TEXTS = jnp.asarray([[2 + i % 7, 3, 1 + i // 7] for i in range(48)], jnp.int32)
PLAN = BeamPlan(TABLE, 4, T5XBeams(0.6), 14, DraftBeams(TABLE, 8, 2))


@functools.cache
def params():
    target = TABLE.init(jax.random.key(0))
    noise = 0.5 * jax.random.normal(jax.random.key(1), target["logits"].shape)
    return Params(target, {"logits": target["logits"] + noise})


@functools.cache
def recorded(plan=PLAN):
    return record(params(), TEXTS, plan, 8, 3)


@functools.cache
def measured(width, depth, reuse, plan=PLAN):
    drafter = DraftBeams(TABLE, width, depth, reuse=reuse)
    trace = beam_search(params(), TEXTS, dataclasses.replace(plan, drafter=drafter)).trace
    return int(np.sum(trace.steps)), int(np.sum(trace.calls))


def predicted(width, depth, reuse, plan=PLAN):
    return steps_and_calls(recorded(plan), DraftBeams(TABLE, width, depth, reuse=reuse))


@pytest.mark.ci
def test_of_trees_that_reuse_nothing_all_is_known():
    assert predicted(8, 3, False) == measured(8, 3, False)


@pytest.mark.ci
def test_with_reuse_calls_are_within_two_per_cent():
    """A node that no recorded tree has is rare, and mostly leads nowhere."""
    steps, calls = measured(8, 2, True)
    found = predicted(8, 2, True)
    assert found[0] == steps and abs(found[1] - calls) <= 0.02 * calls


@pytest.mark.slow
def test_narrower_drafts_and_another_rule():
    plan = dataclasses.replace(PLAN, rule=HuggingFaceBeams(), best_only=True)
    for width, depth, reuse in ((4, 1, False), (4, 3, False), (8, 1, True)):
        assert predicted(width, depth, reuse, plan) == measured(width, depth, reuse, plan)


@pytest.mark.planted
def test_opinions_that_are_not_reused_are_seen(monkeypatch):
    children = beam_recording._children
    monkeypatch.setattr(
        beam_recording, "_children", lambda level, opinions, known: children(level, opinions, set())
    )
    steps, calls = measured(8, 2, True)
    assert predicted(8, 2, True)[1] > 1.02 * calls


def test_a_plan_without_a_drafter_is_refused():
    with pytest.raises(ValueError, match="the plan has no drafter, whose opinions"):
        record(params(), TEXTS, PLAN.alone(), 8, 3)
