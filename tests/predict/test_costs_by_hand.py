"""Costs of a roofline, worked out by hand: pytest tests/predict/test_costs_by_hand.py"""

from __future__ import annotations

import dataclasses
import json

import pytest

from specdec.common.records import RecordsError
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.measure.parts import Calls, Turn, key_of, name_of
from specdec.predict import stored_costs
from specdec.predict.hardware import Call, Chip
from specdec.predict.roofline import predict_beams, roofline_costs
from specdec.testing import TableTarget
from specdec.types import Part

# A GB takes 1 ms, and a GFLOP 0.1 ms; a message 1 us, and 2 GB to both neighbours 1 ms.
CHIP = Chip(flops=1e13, int8=2e13, bandwidth=1e12, memory=1, link=1e12, host=(1, 1, 1))
CALLS = {
    "target": Call(
        bytes=4e9,
        flops=1e10,
        layers=24,
        reductions=3,
        reduced=1e6,
        gathers=2,
        gathered=2e6,
        devices=4,
    ),
    "draft": Call(bytes=5e8, flops=1e9, layers=8, int8=2e9),
}


def seconds(role: str, width: int, each: float) -> float:
    if role == "draft":
        return max(0.5e-3, width * (0.1e-3 + 0.1e-3)) + 8 * each
    messages, moved = (2 * 3 + 2) * 3 * 1e-6, (2e6 + 2e6) * width * 3 / 4 / 2e12
    return max(4e-3, width * 1e-3) + messages + moved + 24 * each


@pytest.mark.parametrize("each, shown", [(14e-6, "14 us"), (2.5e-5, "25 us")])
def test_a_call_takes_its_memory_or_its_products(each, shown):
    more = {} if each == 14e-6 else {"layer_seconds": each}
    found = roofline_costs(CALLS, CHIP, "a roofline", **more)
    expected = {
        (role, width): seconds(role, width, each) for role in CALLS for width in range(1, 129)
    }
    assert {(key.role, key.width): value for key, value in found.calls.items()} == pytest.approx(
        expected
    )
    assert (found.prefill, found.prefill_alone) == (0, 0)
    assert found.step == pytest.approx(expected["target", 1])
    assert found.source == f"a roofline and {shown} for each layer, no prefill"


def test_calls_of_a_search_without_and_with_a_time_for_each_layer():
    """Two beams and trees of seven tokens, from drafts of three beams and two steps."""
    table = TableTarget(9)
    plan = BeamPlan(table, 2, T5XBeams(), 12, DraftBeams(table, 3, 2))
    for found, each in zip(predict_beams(CHIP, plan, CALLS), (0, 14e-6), strict=True):
        step = seconds("target", 2, each)
        iteration = sum(part.calls * seconds(part.role, part.width, each) for part in plan.parts())
        assert found.layer_seconds == each and found.step == pytest.approx(step)
        assert found.iteration == pytest.approx(iteration)
        assert found.pays_from == pytest.approx(iteration / step)


def test_a_topology_of_a_compilation(tmp_path):
    """The only one need not be named."""
    one = {
        "topology": "v4:1x1x1",
        "chip": dataclasses.asdict(CHIP),
        "calls": {role: dataclasses.asdict(call) for role, call in CALLS.items()},
        "assumed": {"layer_seconds": 1e-5},
    }
    path = tmp_path / "compile.json"
    path.write_text(json.dumps({"topologies": [one]}))
    found = stored_costs.read(str(path), None)
    assert found.step == pytest.approx(seconds("target", 1, 1e-5))
    assert found.source == f"{path}, a roofline of v4:1x1x1 and 10 us for each layer, no prefill"
    two = one | {"topology": "v5e:1x1", "assumed": {"layer_seconds": 2e-5}}
    path.write_text(json.dumps({"topologies": [one, two, {**one, "topology": "x", "calls": {}}]}))
    found = stored_costs.read(str(path), "v5e:1x1")
    assert found.step == pytest.approx(seconds("target", 1, 2e-5))
    for name in (None, "x"):
        with pytest.raises(RecordsError, match="give --topology=NAME of v4:1x1x1, v5e:1x1"):
            stored_costs.read(str(path), name)


def test_names_of_parts_in_files():
    parts = {
        "draft 2": Calls("draft", 2),
        "alone 1": Calls("alone", 1),
        "prefill": "prefill",
        "turn of 1 x draft 2, 3 x draft 1, 1 x target 5": Turn(
            (Part("draft", 2, 1), Part("draft", 1, 3), Part("target", 5, 1))
        ),
    }
    assert {name_of(key): key for key in parts.values()} == parts
    assert {name: key_of(name) for name in parts} == parts


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_step_of_the_target_alone_is_computed_with_one_token_or_with_two(width, tmp_path):
    medians = {"prefill": 3.0, "alone prefill": 2.0, f"alone {width}": 0.5}
    medians |= {"target 4": 0.75, "draft 1": 0.25}
    path = tmp_path / "a.jsonl"
    timing = {"text": 0, "repeat": 0, "steps": 1}
    lines = [{"part": part, "seconds": x, **timing} for part, x in medians.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if width == 3:
        with pytest.raises(RecordsError, match="a.jsonl has no timings of parts"):
            stored_costs.of_bench(str(path))
        return
    found = stored_costs.of_bench(str(path))
    assert found[1:] == (3.0, 2.0, 0.5, str(path))
    assert found.calls[Calls("target", 4)] == 0.75 and found.calls[Calls("draft", 1)] == 0.25
