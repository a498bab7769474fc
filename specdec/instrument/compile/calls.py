"""The figures of a model's calls for a roofline: bytes, FLOPs, and collectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax

from specdec.instrument.compile import hlo
from specdec.instrument.compile.hardware import Call
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.types import PyTree


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
    sums = {
        name: sum(getattr(one, name) for one in (call, *others))
        for name in ("bytes", "flops", "int8", "layers")
    }
    return dataclasses.replace(call, **sums)


def with_collectives(call: Call, module: hlo.Module, width: int, share: float = 1.0) -> Call:
    """Returns a call with collectives."""
    results: dict[str, list[int]] = {"all-reduce": [], "all-gather": []}
    for one in module.collectives:
        results.setdefault(one.opcode, []).append(one.bytes)
    reduced, gathered = results["all-reduce"], results["all-gather"]
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
