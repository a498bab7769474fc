"""A target of a user's own, which belongs to no family: pytest tests/engine/test_own_target.py"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import pytest

from specdec import checkpoints, tasks
from specdec.common import demo
from specdec.drafters import Autoregressive
from specdec.engine import Engine, Placement
from specdec.measure.alphas import Accepted
from specdec.models.contract.model import Model, Target
from specdec.plan import Plan
from specdec.predict.timed_costs import of_run
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.texts.measured_run import Run
from specdec.texts.texts import Data
from specdec.verifiers import GreedyMatch

DRAFT = demo.path("draft")
MODEL = checkpoints.model_from(DRAFT)
LENGTHS = {"inputs": 16, "targets": 8}


@dataclasses.dataclass(frozen=True)
class Sharper(Target):
    """A T5 whose logits are multiplied by a factor, with a T5's checkpoint."""

    inner: Model
    factor: float
    exact: ClassVar[bool] = True

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.vocab_size

    def init(self, key):
        return self.inner.init(key)

    def axes(self):
        return self.inner.axes()

    def start(self, inputs):
        return self.inner.start(inputs)

    def prefill(self, params, inputs, capacity):
        return self.inner.prefill(params, inputs, capacity)

    def decode(self, params, tokens, cache):
        output, cache = self.inner.decode(params, tokens, cache)
        return output._replace(logits=self.factor * output.logits), cache


def opened(target):
    rules = GreedyMatch(), Fixed(3), Greedy(), LENGTHS["targets"]
    plan = Plan(target, Autoregressive(MODEL, Greedy()), *rules, stop_ids=(1,))
    return Engine.open(plan, {"target": DRAFT, "draft": DRAFT})


@pytest.mark.ci
def test_its_parameters_are_read_from_a_checkpoint():
    ours, engine = opened(MODEL), opened(Sharper(MODEL, 2.0))
    pairs = [("translate English to German: One.", "Eins.")]
    (batch,) = tasks.text_batches(pairs, engine.vocabulary, LENGTHS, batch_size=1)
    expected, _ = ours.decode(batch)
    for one in (engine, engine.alone()):
        found, _ = one.decode(batch)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
    # A greedy output does not depend on the factor, and a likelihood does.
    assert (engine.score(batch) != ours.score(batch)).any()


def test_a_variant_of_another_target_reads_its_own():
    engine = opened(Sharper(MODEL, 2.0))
    engine.load()
    other = engine.with_models({"target": Sharper(MODEL, 3.0)})
    same = jax.tree.map(np.array_equal, other.params["target"], engine.params["target"])
    assert jax.tree.all(same)


def test_its_calls_are_timed():
    run = Run(opened(Sharper(MODEL, 2.0)), Data(None, "test", LENGTHS))
    texts = [Accepted(0, 3, {}, inputs=(5, 6, 1), output=(7, 8, 1))]
    costs = of_run(run, texts, {"own": run.plan})["own"]
    assert costs.step > 0 and ("target", 4) in costs.calls


def test_a_mesh_cannot_divide_it():
    plan = opened(Sharper(MODEL, 2.0)).plan
    with pytest.raises(ValueError, match="which a mesh cannot divide; leave NUM_PARTITIONS out"):
        Placement().divided(plan)
