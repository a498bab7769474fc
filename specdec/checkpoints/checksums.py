"""Checksums of arrays: a flipped bit in a weight causes no error, only other texts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import jax
import numpy as np

from specdec.checkpoints import tree
from specdec.types import PyTree


def checksum(array: np.ndarray) -> str:
    """Returns the CRC-32 of the elements' bytes, in C order, as eight hexadecimal digits."""
    return f"{zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data):08x}"


def of_tree(params: PyTree) -> dict[str, str]:
    """Returns each array's checksum by its name, except arrays that span several hosts."""
    return {
        name: checksum(np.asarray(leaf))
        for name, leaf in tree.flatten(params).items()
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    }


def damage(name: str, array: np.ndarray, recorded: Mapping[str, str]) -> str | None:
    """Returns a message if the array's checksum differs from the recorded one, else None."""
    expected = recorded.get(name)
    if expected is None or (actual := checksum(array)) == expected:
        return None
    return f"{name} has the checksum {actual}, and was saved with {expected}"
