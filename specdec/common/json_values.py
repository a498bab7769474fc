"""The objects of JSON that other programs write, such as the config of a checkpoint.

A record that the project writes itself has a type of its own, next to the code that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# Nothing is known about the values until a reader has checked them.
JsonObject: TypeAlias = Mapping[str, Any]


def is_object(value: object) -> bool:
    """Returns whether a value that was read from JSON is an object."""
    return isinstance(value, dict)
