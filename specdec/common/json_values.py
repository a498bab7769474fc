"""The objects of JSON whose values nothing has checked, such as the config of a checkpoint.

The lines and reports that are read by name have types of their own, next to what writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# It was read from a file, and a reader checks the values that it uses.
JsonObject: TypeAlias = Mapping[str, Any]


def is_object(value: object) -> bool:
    """Returns whether a value that was read from JSON is an object."""
    return isinstance(value, dict)
