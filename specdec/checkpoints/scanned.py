"""Arrays that hold several parameters, or one in another shape: the family says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.checkpoints import arrays
from specdec.checkpoints.arrays import Opened, Stored
from specdec.models import families


def unstack(opened: Mapping[str, Opened], config: Any) -> list[Stored]:
    """The parameters in each array.

    config: of their model; None for whichever of the default family.
    """
    name = families.DEFAULT if config is None else families.family_of(config).name
    scanned = families.named(name).scanned
    if scanned is None:
        return [Stored(data, (name,), data.shape) for name, data in opened.items()]

    def repeats(name: str, axis: int) -> bool:
        layers = arrays.fetch(opened[name])
        return bool((layers == layers.take([0], axis)).all())

    shapes = {name: tuple(data.shape) for name, data in opened.items()}
    stacks = scanned.stacks(shapes, config, repeats)
    return [Stored(opened[name], *stack) for name, stack in stacks.items()]
