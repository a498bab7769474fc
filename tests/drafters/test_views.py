"""A model that reads a part of the inputs, wherever it runs: pytest tests/drafters/test_views.py

Counted as programs are traced: the length of the inputs that each model is given.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import PromptTable

from specdec.decoding.draft_beams import DraftBeams
from specdec.drafters import Autoregressive, Committee, Hybrid, NoSource, PromptLookup
from specdec.measure import opinions
from specdec.measure.parts import PREFILL, Workload
from specdec.plan import Plan
from specdec.predict.timed_costs import timed
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import Skipping, TableTarget
from specdec.verifiers import GreedyMatch

LENGTHS: dict[str, set[int]] = {}


@dataclasses.dataclass(frozen=True)
class Seen(TableTarget):
    """A table that writes down how long its inputs are."""

    name: str = ""

    def prefill(self, params, inputs, capacity):
        LENGTHS.setdefault(self.name, set()).add(inputs.shape[1])
        return super().prefill(params, inputs, capacity)


TARGET, MODEL, OTHER = (Seen(6, name=name) for name in ("target", "blind", "seeing"))
BLIND = Autoregressive(MODEL, Greedy(), NoSource())
SEEING = Autoregressive(OTHER, Greedy(), role="draft_2")
DRAFTERS = {
    "itself": BLIND,
    "in a hybrid": Hybrid(PromptLookup(), BLIND),
    "in a hybrid in a hybrid": Hybrid(PromptLookup(), Hybrid(PromptLookup(), BLIND)),
    "in a committee": Committee((BLIND, SEEING), Greedy()),
    "in a wrapper": Skipping(BLIND),
}
S = 7


@pytest.fixture(params=DRAFTERS)
def plan(request):
    LENGTHS.clear()
    yield Plan(TARGET, DRAFTERS[request.param], GreedyMatch(), Fixed(2), Greedy(), 4)
    expected = {"target": {S}, "blind": {1}}
    if "committee" in request.param:
        expected["seeing"] = {S}
    assert expected == LENGTHS


def trees_of(plan):
    return {role: model.init(jax.random.key(0)) for role, model in plan.models().items()}


def test_it_is_timed_with_what_it_reads(plan):
    trees = trees_of(plan)
    part = Workload.of(plan, plan.alone()).parts[PREFILL]
    part.program.lower(trees, np.full([1, S], 3, np.int32))


@pytest.mark.ci
def test_it_is_forecast_with_what_it_reads(plan):
    trees = trees_of(plan)
    trees["alone"] = trees["target"]
    clock = iter(range(10**6))
    given = lambda role, model: trees[role], np.full([1, S], 3, np.int32)  # noqa: E731
    timed({2: plan}, plan.alone(), *given, clock=lambda: float(next(clock)))


def test_it_is_asked_with_what_it_reads(plan):
    trees, inputs = plan.params(trees_of(plan)), jnp.full([1, S], 3)
    tokens, length = jnp.full([1, 5], 3), jnp.array([4])

    def ask(trees):
        taught = opinions.teach(trees, inputs, tokens[:, :-1], plan=plan)
        return opinions.opinions(trees, inputs, tokens, length, taught, plan=plan)

    jax.eval_shape(ask, trees)


class OtherIds(TableTarget):
    """A table whose texts end in 4 or 3, and are padded with 5."""

    stop_ids = (4, 3)
    pad_id = 5


@pytest.mark.parametrize(
    "drafter",
    [Autoregressive(OtherIds(6), Greedy(), NoSource()), DraftBeams(OtherIds(6), 2, 2, NoSource())],
    ids=lambda one: type(one).__name__,
)
def test_what_hides_the_source_has_the_ids_of_the_model(drafter):
    inputs = jnp.array([[0, 1, 5], [5, 5, 5]])
    assert drafter.views()["draft"](inputs).tolist() == [[4], [5]]


def test_a_decoder_only_model_cannot_be_without_its_prompt():
    drafter = Autoregressive(PromptTable(6), Greedy(), NoSource())
    with pytest.raises(ValueError, match="NoSource hides .* PromptTable, a decoder-only model; le"):
        drafter.views()
    for some in ({}, {"eos_id": 1}, {"pad_id": 0}):
        says = r"NoSource\(.*\) has no ids; call read_by\(model\) first"
        with pytest.raises(ValueError, match=says):
            NoSource(**some)(jnp.ones([1, 2], int))
