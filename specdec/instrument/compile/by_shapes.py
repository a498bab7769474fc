"""The figures of a plan's model calls from shapes alone, for machines without libtpu's compiler.

Bytes and operations are counted in the shapes of parameters, collectives in their logical axes.
Nothing is compiled, so temporaries and code are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from specdec.instrument.compile.calls import device_bytes, silent_call
from specdec.instrument.compile.hardware import Call
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.types import AxisRules

LOGIT = 4  # bytes of a logit, which is float32


class Shape(NamedTuple):
    """The shape of a cache: its rows, and tokens of outputs and inputs."""

    rows: int
    outputs: int
    inputs: int


class Counted(NamedTuple):
    """The figures of a plan on one device."""

    calls: dict[str, Call]  # of each model, by role
    parameters: int  # bytes of all models' parameters
    caches: int  # bytes of all caches


def count(plan: Plan, shape: Shape, devices: int) -> Counted:
    """Counts the calls of a plan."""
    mesh = AbstractMesh((1, devices), (partitioning.DATA, partitioning.MODEL))
    models = {
        role: dataclasses.replace(one, axis_rules=partitioning.fitting(one, one.axis_rules, mesh))
        for role, one in plan.models().items()
        if isinstance(one, Model)
    }
    return Counted(
        calls={role: counted(one, one.axis_rules, shape, mesh) for role, one in models.items()},
        parameters=sum(_parameter_bytes(model, mesh) for model in models.values()),
        caches=sum(model.cache_bytes(*shape, dict(mesh.shape)) for model in models.values()),
    )


@functools.cache
def _parameter_bytes(model: Model, mesh: AbstractMesh) -> int:
    return device_bytes(partitioning.abstract(model, mesh))


@functools.cache
def counted(model: Model, rules: AxisRules, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the figures of a model's call, with its collectives."""
    one, two = (_counted(_with(model, rules, layers, mesh), shape, mesh) for layers in (1, 2))
    more = model.num_layers - 1

    def of_all(name: str) -> Any:
        first = getattr(one, name)
        return first + more * (getattr(two, name) - first)

    return Call(**{field.name: of_all(field.name) for field in dataclasses.fields(Call)})


def _with(model: Model, rules: AxisRules, layers: int, mesh: AbstractMesh) -> Model:
    encoder = {name: 1 for name in ("num_encoder_layers",) if model.sizes.get(name)}  # not called
    config = dataclasses.replace(model.config, num_decoder_layers=layers, **encoder)
    model = dataclasses.replace(model, config=config, axis_rules=())
    return dataclasses.replace(model, axis_rules=partitioning.fitting(model, rules, mesh))


def _counted(model: Model, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the figures of one call.

    A product whose sum runs over a divided axis ends in an all-reduce, as does reading a divided
    table of tokens. A divided vocabulary ends in an all-gather of the logits.
    """
    sizes = dict(mesh.shape)
    params = partitioning.abstract(model, mesh)
    call = silent_call(model, params, model.cache_bytes(*shape, sizes), shape.rows, sizes)
    divided = {name for name, over in model.axis_rules if over == partitioning.MODEL}
    axes, leaves = ({k: v for k, v in x.items() if k != "encoder"} for x in (model.axes(), params))
    axes = jax.tree.leaves(axes, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    named = zip(axes, jax.tree.leaves(leaves), strict=True)
    sums = [x.shape[1] for names, x in named if names[1:] == ("embed",) and names[0] in divided]
    gathers = int("vocab" in divided)
    return dataclasses.replace(
        call,
        reductions=len(sums),
        reduced=sum(sums) * jnp.dtype(model.dtype).itemsize,
        gathers=gathers,
        gathered=gathers * model.vocab_size * LOGIT,
    )
