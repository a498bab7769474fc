"""The table of families: a new one is a folder and a row here, and nothing else changes.

A family outside of this package is registered where it is defined, so that importing it, from a gin
file too, makes its checkpoints known (examples/rotary.py):

    families.register(Family("rotary", RotaryConfig, Rotary))
"""

from __future__ import annotations

from typing import Any

from specdec.models.family import Family
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.t5 import T5Config, T5Target, growth, huggingface, scanned
from specdec.models.t5.shapes import misfit
from specdec.types import Model

__all__ = ["DEFAULT", "FAMILIES", "Family", "family_of", "model_of", "named", "register"]

FAMILIES: dict[str, Family] = {
    "t5": Family("t5", T5Config, T5Target, misfit, huggingface, scanned, growth),
    "heads": Family("heads", HeadsConfig, Heads),
}
DEFAULT = "t5"  # of configs that name none, such as T5X's


def register(family: Family) -> None:
    """Adds a row to the table.

    Raises:
      ValueError: another family has that name.
    """
    if FAMILIES.setdefault(family.name, family) != family:
        raise ValueError(f"there is a family {family.name!r} already; register another name")


def named(name: str) -> Family:
    """The family of that name.

    Raises:
      ValueError: there is none.
    """
    if name not in FAMILIES:
        raise ValueError(
            f"family is {name!r}, and those known are {', '.join(FAMILIES)}; import the module "
            "that registers it"
        )
    return FAMILIES[name]


def family_of(config: Any) -> Family:
    """The family that a config is of.

    Raises:
      ValueError: it is of none.
    """
    for family in FAMILIES.values():
        if type(config) is family.config:
            return family
    known = ", ".join(family.config.__name__ for family in FAMILIES.values())
    raise ValueError(
        f"config is a {type(config).__name__}, and those known are {known}; register its family"
    )


def model_of(config: Any) -> Model:
    """The model of a config, as its checkpoints have it; raises as `family_of` does."""
    return family_of(config).model(config)
