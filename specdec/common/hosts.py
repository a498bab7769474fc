"""Exchanges values between the hosts that run one program.

All hosts call each of these functions, in the same order. On one host nothing is sent.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import ArrayLike

from specdec.common.records import RecordsError

T = TypeVar("T")


def is_first() -> bool:
    """Returns whether this host is the first one, which writes what is written only once."""
    return jax.process_index() == 0


def largest(number: int) -> int:
    """Returns the largest of the numbers that the hosts pass."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def exchanged(value: T) -> list[T]:
    """Returns the values that all hosts pass, in the order of the hosts."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    padded = np.pad(data, (0, int(sizes.max()) - len(data)))
    rows = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def from_first(act: Callable[[], T]) -> T:
    """Calls `act` on the first host alone, and returns its value on all hosts."""
    if jax.process_count() == 1:
        return act()
    value: T | None = None
    failed: Exception | None = None
    if is_first():
        try:
            value = act()
        except Exception as error:
            failed = error
    first_value, message = exchanged((value, failed and str(failed)))[0]
    if failed is not None:
        raise failed
    if message is not None:
        raise RecordsError(f"the first host ended: {message}")
    return cast(T, first_value)  # which is None only if `act` returns that


def whole(array: ArrayLike | jax.Array) -> np.ndarray:
    """Returns an array with all its elements, which may be distributed over several hosts."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
