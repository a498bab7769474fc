"""Names a tree's arrays ('decoder/layers_0/mlp/wo/kernel'), and checks that they fit a model."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping

from flax import traverse_util

from specdec.checkpoints.errors import CheckpointError
from specdec.models import families
from specdec.models.contract.family import Config, Shape, Shapes
from specdec.models.contract.model import Weights
from specdec.types import Array, PyTree

_QUICK = 50  # layers that are traced in seconds
_USUAL = 2**19  # no side of a model is longer
_DISTANCE = 2**20  # the same, of a table that no array is compared with
_SIDES = ("dim", "heads", "size", "positions", "bins", "buckets")  # last words of configs' fields


def flatten(tree: PyTree) -> dict[str, Array]:
    """Returns a nested dict as {name: leaf}, in alphabetical order, so equal trees are written
    equally."""
    return dict(sorted(traverse_util.flatten_dict(tree, sep="/").items()))


def unflatten(leaves: Mapping[str, object]) -> PyTree:
    """Returns the nested dict of leaves whose names have slashes, the inverse of `flatten`."""
    return traverse_util.unflatten_dict(leaves, sep="/")


def shapes_of(model: Weights) -> dict[str, Shape]:
    """Returns the shapes of a model's parameters in checkpoints, by name."""
    return shapes(model.stored().parameter_shapes())


def shapes(tree: PyTree) -> dict[str, Shape]:
    """Returns the shapes of a tree's arrays, by name."""
    return {name: leaf.shape for name, leaf in flatten(tree).items()}


def parameter_count(model: Weights) -> int:
    """Returns how many numbers a checkpoint of the model has.

    Args:
      model: any model.
    """
    return sum(map(math.prod, shapes_of(model).values()))


def check(shapes: Shapes, config: Config, what: str) -> None:
    """Raises CheckpointError unless `shapes`, by name, are those of the model's parameters."""
    check_sizes(config, shapes.values(), what)
    family = families.family_of(config)
    expected = shapes_of(family.model(config))
    missing = [name for name in expected if name not in shapes]
    unexpected = [name for name in shapes if name not in expected]
    misshaped = [name for name in expected if name in shapes and shapes[name] != expected[name]]
    if not (missing or unexpected or misshaped):
        return
    complaints = [
        _list("missing", missing, lambda name: f"{name} {expected[name]}"),
        _list("unexpected", unexpected, lambda name: f"{name} {shapes[name]}"),
        _list("misshaped", misshaped, lambda name: f"{name} {shapes[name]}, not {expected[name]}"),
    ]
    raise CheckpointError(
        f"{what} does not fit the model: {'; '.join(filter(None, complaints))}; "
        f"likely cause: {family.misfit(shapes, expected)}"
    )


def check_sizes(config: Config, shapes: Iterable[Shape], what: str) -> None:
    """Raises CheckpointError if a config has sizes far larger than its arrays.

    Otherwise `check` would trace a model of these sizes; 100 layers take it half a minute.
    """
    shapes = list(shapes)
    side = max([_USUAL, *(side for shape in shapes for side in shape)])
    most = {name: side for name in _SIDES}
    most |= {"layers": max(_QUICK, len(shapes)), "distance": _DISTANCE, "theta": sys.maxsize}
    for name, value in traverse_util.flatten_dict(dataclasses.asdict(config), sep=".").items():
        end = name.rpartition("_")[2]
        limit = most[end] if end in most else 2**31 - 1  # of JAX's integers
        if isinstance(value, int) and value > limit:
            raise CheckpointError(
                f"{what} has a config in which {name} is {value}, far more than its arrays have; "
                "copy both again"
            )


def _list(kind: str, names: list[str], describe: Callable[[str], str], limit: int = 3) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > limit else ""
    return f"{len(names)} {kind} ({', '.join(map(describe, names[:limit]))}{more})"
