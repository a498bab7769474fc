"""Bytes and operations from shapes, worked out by hand: pytest tests/predict/test_by_shapes.py"""

from __future__ import annotations

import dataclasses
import functools

from support import tiny_t5

from specdec import Plan
from specdec.drafters import Autoregressive
from specdec.models import partitioning
from specdec.models.t5 import T5Target
from specdec.predict.hardware import Call
from specdec.predict.roofline import Counted, Shape, count
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

# Width, heads and MLP of the models are 16, so a kernel has 256 numbers, of 4 bytes each. A call
# reads nine kernels and three norms of a layer, the last norm, 16 x 32 logits, and 2 x 32 biases.
LAYER, REST = 9 * 256 + 3 * 16, 16 + 16 * 32 + 2 * 32
CROSS = 2 * 256  # keys and values of the encoder's output, which only prefill computes
# The encoder's seven kernels, its norms and biases, and 32 embeddings.
ENCODER = 7 * 256 + 2 * 16 + 16 + 2 * 32 + 32 * 16
SHAPE = Shape(2, 8, 24)
CACHE = 2 * 2 * (8 + 24) * 16 * 4  # of a layer: two rows, keys and values


@functools.cache
def counted(rules, devices: int) -> Counted:
    """Returns the figures of a target and a draft."""
    target = T5Target(tiny_t5(32, decoder=3), axis_rules=rules)
    draft = T5Target(tiny_t5(32, decoder=1), axis_rules=rules)
    drafter = Autoregressive(draft, Greedy())
    return count(Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), 8), SHAPE, devices)


def test_a_plan_on_one_device():
    found = counted((), 1)
    numbers = 3 * LAYER + REST, LAYER + REST
    assert found == Counted(
        calls={
            "target": Call(bytes=4 * numbers[0] + 3 * CACHE, flops=4 * numbers[0], layers=3),
            "draft": Call(bytes=4 * numbers[1] + CACHE, flops=4 * numbers[1], layers=1),
        },
        parameters=4 * (sum(numbers) + (3 + 1) * CROSS + 2 * ENCODER),
        caches=(3 + 1) * CACHE,
    )


def test_a_target_on_two_devices():
    """Norms stay whole, and so do the numbers of the biases of one head out of two.

    Sums over divided axes are those of both attentions and the MLP in each layer, and of the table
    of tokens: 16 float32 each. Then 32 logits are gathered.
    """
    rules = partitioning.standard_logical_axis_rules()
    target = counted(rules, 2).calls["target"]
    numbers = 3 * (9 * 128 + 3 * 16) + 16 + 16 * 16 + 32
    assert target == Call(
        bytes=4 * numbers + 3 * CACHE // 2,
        flops=4 * numbers,
        layers=3,
        reductions=10,
        reduced=10 * 16 * 4,
        gathers=1,
        gathered=32 * 4,
        devices=2,
    )


def test_three_devices_divide_nothing():
    """No size is a multiple of three, so each device has everything, and nothing is summed."""
    alone, found = counted((), 1), counted(partitioning.standard_logical_axis_rules(), 3)
    assert found[1:] == alone[1:]
    for role, call in alone.calls.items():
        assert found.calls[role] == dataclasses.replace(call, devices=3)
