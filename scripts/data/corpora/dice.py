"""Random choices that depend on three integers only, on every machine and Python version."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

SPLITS = ("train", "validation", "test")


class Weighted(NamedTuple, Generic[T]):
    """Alternatives with unequal weights: P(items[i]) = bounds[i] - bounds[i - 1]."""

    items: tuple[T, ...]
    bounds: tuple[float, ...]  # ascending, the last one 1

    @classmethod
    def of(cls, items: Sequence[T], weights: Sequence[float]) -> Weighted[T]:
        total = sum(weights)
        bounds = [sum(weights[: i + 1]) / total for i in range(len(weights))]
        return cls(tuple(items), (*bounds[:-1], 1.0))


class Dice:
    """A stream of random choices for each (task, split, index).

    Only `random.Random.random` is used: Python guarantees its values for an integer seed, but not
    those of `choice` and similar functions. The seed is a mixed-radix number of the three integers.
    No two combinations, and so no two splits, share one.
    """

    def __init__(self, task: int, split: str, index: int):
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; give one of {', '.join(SPLITS)}")
        if not 0 <= index < 2**48:
            raise ValueError(f"index is {index}; give 0 <= index < 2**48")
        key = (task * len(SPLITS) + SPLITS.index(split)) << 48 | index
        self._random = random.Random(key).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Returns one of `items`, with equal probability."""
        return items[int(self._random() * len(items))]

    def weigh(self, weighted: Weighted[T]) -> T:
        """Returns one of the items, according to their weights."""
        if len(weighted.items) == 1:
            return weighted.items[0]
        u = self._random()
        return next(
            item for item, bound in zip(weighted.items, weighted.bounds, strict=True) if u < bound
        )

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Returns all `items` in a random order (Fisher and Yates)."""
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = int(self._random() * (last + 1))
            items[last], items[other] = items[other], items[last]
        return items
