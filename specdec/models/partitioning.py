"""Models over several devices: a mesh, rules for logical axes, and the resulting shardings.

A mesh has two axes. `model` divides each matrix of the target, Megatron-style (Shoeybi et al.
2019): queries, keys, values and the first half of an MLP by columns, and the matrices after them by
rows. A sub-layer then ends in one sum over the devices. The KV cache is divided by heads, and the
logits are gathered once per call. `data` divides the rows of a batch. By default every device has
the whole drafter: a small model's step is bound by latency, and this way it never waits for another
device.

  devices      model 0        model 1
  data 0       heads 0-3      heads 4-7      of rows 0-3
  data 1       heads 0-3      heads 4-7      of rows 4-7
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from specdec.common.values import Checked, PositiveInt
from specdec.models.contract.model import Model, Weights
from specdec.types import AxisRules, PyTree, Values

DATA, MODEL = "data", "model"
JOINED = ("heads", "joined_kv")  # logical axes that are divided together


def standard_logical_axis_rules() -> AxisRules:
    """Returns T5X's standard rules for one axis of activations and parameters.

    A logical axis that has no rule is not divided. ('vocab', None) would keep the embedding and the
    vocabulary's projection whole on every device. Logits have the axis 'logits', which is divided
    in training only.
    """
    return (
        ("batch", DATA),
        ("vocab", MODEL),
        ("mlp", MODEL),
        ("heads", MODEL),
        ("joined_kv", MODEL),
        ("kv", None),
        ("embed", None),
        ("relpos_buckets", None),
        ("length", None),
    )


def replicated_logical_axis_rules() -> AxisRules:
    """Returns the rules of a model that is whole on every device; only rows are divided."""
    return (("batch", DATA),)


@dataclasses.dataclass(frozen=True)
class Partitioner(Checked):
    """The division of a target and its drafter over devices."""

    # the size of the `model` axis, as in T5X; the remaining devices make the `data` axis. None for
    # one device and no mesh.
    num_partitions: PositiveInt | None = None
    logical_axis_rules: AxisRules = standard_logical_axis_rules()  # the target's rules
    # the rules of the drafter's models
    draft_logical_axis_rules: AxisRules = replicated_logical_axis_rules()

    def __post_init__(self):
        super().__post_init__()
        for name in ("logical_axis_rules", "draft_logical_axis_rules"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh | None:
        """Returns the mesh of all devices, or of the given ones, for `jax.set_mesh`."""
        if self.num_partitions is None:
            return None
        return make_mesh(self.num_partitions, devices)


def _checked(name: str, rules: Iterable[tuple[str, str | None]]) -> AxisRules:
    """Returns rules as tuples, because gin gives lists."""
    try:
        pairs = tuple((logical, axis) for logical, axis in rules)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is {rules!r}; give pairs of a logical axis and a mesh axis, as in "
            "(('heads', 'model'), ('embed', None))"
        ) from error
    for logical, axis in pairs:
        if axis not in (DATA, MODEL, None):
            raise ValueError(
                f"{name} divides {logical!r} over {axis!r}; the mesh has {DATA!r} and {MODEL!r}"
            )
    return pairs


def make_mesh(num_partitions: int, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh [devices / num_partitions, num_partitions] with axes `data` and `model`.

    Neighbours on the `model` axis are close to each other, and the devices of one process are
    together.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if num_partitions > count:
        raise ValueError(
            f"num_partitions is {num_partitions} but there {_are(count, 'device')}; "
            f"give {_listed(_divisors(count))}"
        )
    if count % num_partitions:
        raise ValueError(
            f"num_partitions is {num_partitions}, which does not divide {count} devices; "
            f"give {_listed(_divisors(count))}"
        )
    return jax.make_mesh(
        (count // num_partitions, num_partitions),
        (DATA, MODEL),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )


def shardings(model: Model, mesh: Mesh | AbstractMesh) -> PyTree:
    """Returns a tree like a model's parameters, with their `NamedSharding` by its `axis_rules`."""
    rules = _checked("axis_rules", model.axis_rules)
    shapes = model.parameter_shapes()

    def place(path, leaf, axes) -> NamedSharding:
        named = [
            (axis, size, _mesh_axis(axis, rules))
            for axis, size in zip(axes, leaf.shape, strict=True)
        ]
        for logical, size, axis in named:
            if axis is not None and size % mesh.shape[axis]:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                raise ValueError(_uneven(name, logical, size, axis, mesh))
        return NamedSharding(mesh, PartitionSpec(*(axis for *_, axis in named)))

    axis = _mesh_axis("heads", rules)
    if axis is not None and (heads := model.cache_heads) and heads % mesh.shape[axis]:
        raise ValueError(_uneven("the cache", "heads", heads, axis, mesh))
    return jax.tree_util.tree_map_with_path(place, shapes, model.axes())


def fitting(model: Model, rules: AxisRules, mesh: Mesh | AbstractMesh) -> AxisRules:
    """Returns rules under which the mesh divides all parameters of a model evenly.

    A logical axis whose size the mesh cannot divide stays whole. Heads and their joined axis stay
    whole together. Logits are divided like the vocabulary: gathered ones would take the memory of
    the whole vocabulary for each token of a batch.
    """
    shapes = model.parameter_shapes()
    uneven: set[str] = set()

    def note(leaf, axes) -> None:
        for logical, size in zip(axes, leaf.shape, strict=True):
            axis = _mesh_axis(logical, rules)
            if axis is not None and size % mesh.shape[axis]:
                uneven.update(JOINED if logical in JOINED else (logical,))

    jax.tree.map(note, shapes, model.axes())
    axis = _mesh_axis("heads", rules)
    if axis is not None and (heads := model.cache_heads) and heads % mesh.shape[axis]:
        uneven.update(JOINED)
    fitted = tuple((logical, None if logical in uneven else axis) for logical, axis in rules)
    return (*fitted, ("logits", _mesh_axis("vocab", fitted)))


def _mesh_axis(logical: str | None, rules: AxisRules) -> str | None:
    return next((axis for name, axis in rules if name == logical), None)


def _uneven(name: str, logical: str, size: int, axis: str, mesh: Mesh | AbstractMesh) -> str:
    together = JOINED if logical in JOINED else (logical,)
    rules = " and ".join(f"({axis_name!r}, None)" for axis_name in together)
    return (
        f"{name} has {size} {logical}, which a mesh of {_shape(mesh)} cannot divide by "
        f"{mesh.shape[axis]}; use {_listed(_divisors(math.gcd(size, mesh.size)))} on {axis!r}, or "
        f"the rule{'s' * (len(together) > 1)} {rules}"
    )


def abstract(model: Weights, mesh: Mesh | AbstractMesh | None) -> PyTree:
    """Returns `ShapeDtypeStruct`s of the parameters in the model's dtype, sharded over any mesh."""

    def read(stored: PyTree) -> PyTree:
        return model.from_stored(jax.tree.map(lambda leaf: leaf.astype(model.dtype), stored))

    shapes = jax.eval_shape(read, model.stored().parameter_shapes())
    if mesh is None:
        return shapes
    divided = shardings(cast(Model, model), mesh)
    return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), shapes, divided)


def check_batch(batch_size: int, mesh: Mesh) -> None:
    """Raises ValueError if the mesh cannot divide a batch of this size."""
    parts = mesh.shape[DATA]
    if batch_size % parts:
        raise ValueError(
            f"batch_size is {batch_size}, which a mesh of {_shape(mesh)} cannot divide by {parts}; "
            f"give a multiple of {parts}, or {mesh.size} num_partitions for whole batches"
        )


class Share(NamedTuple):
    """The part of every batch that a process feeds: one of `count` equal parts."""

    index: int  # the index of the part
    count: int  # the number of parts
    first: bool = True  # whether it is the first process that feeds this part
    parts: tuple[int, ...] = (0,)  # the indices on the `data` axis that have its rows

    def rows(self, batch_size: int) -> np.ndarray:
        """Returns [batch_size / count] int, the indices of the process's rows in a batch."""
        size = batch_size // (self.count * len(self.parts))
        return np.concatenate([np.arange(part * size, (part + 1) * size) for part in self.parts])


def share(mesh: Mesh, process: int | None = None) -> Share:
    """Returns the share that this process, or another one, feeds: the rows that its devices hold.

    Several processes feed the same rows if a model is divided over the devices of all of them.
    """
    process = jax.process_index() if process is None else process
    held: dict[int, list[int]] = {}
    for row, devices in enumerate(mesh.devices):
        for owner in {device.process_index for device in devices}:
            held.setdefault(owner, []).append(row)
    groups = sorted({tuple(rows) for rows in held.values()})
    if sum(map(len, groups)) != mesh.shape[DATA] or len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"a mesh of {_shape(mesh)} over {len(held)} hosts gives them rows in common; use a "
            "num_partitions that divides a host's devices, or that is a multiple of them"
        )
    mine = tuple(held[process])
    first = min(owner for owner, rows in held.items() if tuple(rows) == mine)
    return Share(groups.index(mine), len(groups), process == first, mine)


def rows(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays [B, ...] that divides their rows over the `data` axis."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def whole(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that are whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def from_local_rows(local: np.ndarray, mesh: Mesh) -> jax.Array:
    """Returns the array [B, ...] of a batch; `local` [B / count, ...] has this process's rows."""
    return jax.make_array_from_process_local_data(rows(mesh), local)


def divided_rows(tree: PyTree, mesh: Mesh) -> PyTree:
    """Divides the rows of arrays [B, ...], which every process has in full, over the mesh."""
    share_here = share(mesh)

    def feed(rows: Values) -> jax.Array:
        return from_local_rows(np.asarray(rows)[share_here.rows(len(rows))], mesh)

    return jax.tree.map(feed, tree)


def _shape(mesh: Mesh | AbstractMesh) -> str:
    return " x ".join(f"{size} ({name})" for name, size in mesh.shape.items())


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def _are(count: int, noun: str) -> str:
    return f"is {count} {noun}" if count == 1 else f"are {count} {noun}s"
