"""What values that users give are; True is no number here, though a bool of Python's is an int."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeGuard

SEEDS = 2**32  # larger ones would draw what smaller ones draw: JAX keeps 32 bits


class UsageError(ValueError):
    """What the user gave cannot work; the message is one line."""


def is_integer(value: Any, least: int) -> TypeGuard[int]:
    """Whether it is an integer, of at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)  # NumPy's too
    return real and math.isfinite(value)


def is_word(value: Any) -> TypeGuard[str]:
    """Whether it is text with something in it."""
    return isinstance(value, str) and bool(value)


def check_seed(name: str, seed: Any) -> None:
    """Raises ValueError for a seed that JAX would refuse, or cut to another one."""
    if not is_integer(seed, 0) or seed >= SEEDS:
        raise ValueError(f"{name} is {seed!r}; give an integer from 0 to {SEEDS - 1}")


def check_probability(name: str, value: Any) -> None:
    """Raises ValueError for what is none."""
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {value!r}; give a probability, from 0 to 1, as in 0.4")


def check_has(name: str, value: Any, methods: str, remedy: str) -> None:
    """Raises ValueError unless a part has the attributes, divided by spaces, that tell its kind."""
    if not all(hasattr(value, method) for method in methods.split()):
        raise ValueError(f"{name} is {value!r}; give {remedy}")
