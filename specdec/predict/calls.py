"""The figures of a model's calls for a roofline: bytes, FLOPs, and collectives.

`count` takes them from shapes and logical axes, for machines without libtpu's compiler: nothing is
compiled, so temporaries and code are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from specdec.common.values import fields_of
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.predict import hlo
from specdec.predict.hardware import Call
from specdec.types import AxisRules, PyTree

LOGIT = 4  # bytes of a logit, which is float32


def silent_call(
    model: Model, params: PyTree, cache_bytes: int, rows: int, mesh: Mapping[str, int]
) -> Call:
    """Returns the figures of a model's call, without its collectives."""
    read = model.read_by_decode(params)
    leaves = jax.tree.leaves(read)
    in_int8 = [leaf for leaf in leaves if leaf.dtype == "int8" and model.weights == "int8_tokens"]
    numbers, narrow = sum(map(_share, leaves)), sum(map(_share, in_int8))
    per_number = 2 * (rows // mesh[partitioning.DATA])
    return Call(
        bytes=device_bytes(read) + cache_bytes,
        flops=per_number * (numbers - narrow),
        int8=per_number * narrow,
        layers=model.num_layers,
        devices=mesh[partitioning.MODEL],
    )


def together(call: Call, *others: Call) -> Call:
    """Returns the figures of several calls, one after the other, as those of one call."""
    names, calls = ("bytes", "flops", "int8", "layers"), (call, *others)
    sums = {name: sum(map(operator.attrgetter(name), calls)) for name in names}
    return dataclasses.replace(call, **sums)


def with_collectives(call: Call, module: hlo.Module, width: int, share: float = 1.0) -> Call:
    """Returns a call with collectives."""
    reduced, gathered = (
        [x.bytes for x in module.collectives if x.opcode == opcode]
        for opcode in ("all-reduce", "all-gather")
    )
    return dataclasses.replace(
        call,
        reductions=round(share * len(reduced)),
        reduced=share * sum(reduced) / width,
        gathers=round(share * len(gathered)),
        gathered=share * sum(gathered) / width,
    )


def device_bytes(tree: PyTree) -> int:
    """Returns the bytes of the largest share that a device has of a tree of abstract arrays."""
    return sum(_share(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _share(leaf: jax.ShapeDtypeStruct) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape)


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
        role: dataclasses.replace(x, axis_rules=partitioning.fitting(x, x.axis_rules, mesh))
        for role, x in plan.models().items()
        if isinstance(x, Model)
    }
    return Counted(
        calls={role: counted(x, x.axis_rules, shape, mesh) for role, x in models.items()},
        parameters=sum(_parameter_bytes(model, mesh) for model in models.values()),
        caches=sum(model.cache_bytes(*shape, dict(mesh.shape)) for model in models.values()),
    )


@functools.cache
def _parameter_bytes(model: Model, mesh: AbstractMesh) -> int:
    return device_bytes(partitioning.abstract(model, mesh))


@functools.cache
def counted(model: Model, rules: AxisRules, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the figures of a model's call, with its collectives."""
    first, second = (
        fields_of(_counted(_with(model, rules, layers, mesh), shape, mesh)) for layers in (1, 2)
    )
    more = model.num_layers - 1
    return Call(**{name: x + more * (second[name] - x) for name, x in first.items()})


def _with(model: Model, rules: AxisRules, layers: int, mesh: AbstractMesh) -> Model:
    encoder = {name: 1 for name in ("num_encoder_layers",) if model.sizes.get(name)}  # not called
    config = dataclasses.replace(model.config, num_decoder_layers=layers, **encoder)
    model = dataclasses.replace(model, config=config, axis_rules=())
    return dataclasses.replace(model, axis_rules=partitioning.fitting(model, rules, mesh))


def _counted(model: Model, shape: Shape, mesh: AbstractMesh) -> Call:
    """Returns the figures of one call, with the collectives that follow from divided axes."""
    # A product whose sum runs over a divided axis ends in an all-reduce, as does reading a divided
    # table of tokens. A divided vocabulary ends in an all-gather of the logits.
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
