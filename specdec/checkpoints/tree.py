"""Parameter trees by name ('decoder/layers_0/mlp/wo/kernel'), and whether they fit a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from flax import traverse_util

from specdec.checkpoints.errors import CheckpointError
from specdec.models import families
from specdec.models.contract.family import Config, Shape, Shapes
from specdec.models.contract.model import Weights
from specdec.types import Array, PyTree


def flatten(tree: PyTree) -> dict[str, Array]:
    """Returns a nested dict as {name: leaf}, in alphabetical order, so equal trees are written
    equally."""
    return dict(sorted(traverse_util.flatten_dict(tree, sep="/").items()))


def unflatten(leaves: Mapping[str, object]) -> PyTree:
    """Returns the inverse of `flatten`."""
    return traverse_util.unflatten_dict(leaves, sep="/")


def shapes_of(model: Weights) -> dict[str, Shape]:
    """Returns the shapes of a model's parameters in checkpoints."""
    return shapes(model.stored().parameter_shapes())


def shapes(tree: PyTree) -> dict[str, Shape]:
    """Returns the shapes of a tree's arrays."""
    return {name: leaf.shape for name, leaf in flatten(tree).items()}


def parameter_count(model: Weights) -> int:
    """Returns how many numbers a checkpoint of the model has.

    Args:
      model: any model.
    """
    return sum(map(math.prod, shapes_of(model).values()))


def check(found: Shapes, config: Config, what: str) -> None:
    """Raises CheckpointError unless `found` has exactly the parameters of the model.

    Args:
      found: the shape of each parameter.
      config: the config of the model they are for.
      what: the owner of these shapes, for the error.
    """
    family = families.family_of(config)
    expected = shapes_of(family.model(config))
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    misshaped = [name for name in expected if name in found and found[name] != expected[name]]
    if not (missing or unexpected or misshaped):
        return
    complaints = [
        _list("missing", missing, lambda name: f"{name} {expected[name]}"),
        _list("unexpected", unexpected, lambda name: f"{name} {found[name]}"),
        _list("misshaped", misshaped, lambda name: f"{name} {found[name]}, not {expected[name]}"),
    ]
    raise CheckpointError(
        f"{what} does not fit the model: {'; '.join(filter(None, complaints))}; "
        f"likely cause: {family.misfit(found, expected)}"
    )


def _list(kind: str, names: list[str], describe: Callable[[str], str], limit: int = 3) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > limit else ""
    return f"{len(names)} {kind} ({', '.join(map(describe, names[:limit]))}{more})"
