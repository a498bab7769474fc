"""Texts that several hosts decode, gathered on the first host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from specdec.common import hosts

T = TypeVar("T")


def gathered(
    batches: Iterable[list[T]], *, feeds: bool, order: Callable[[T], tuple[int, ...]]
) -> Iterator[list[T]]:
    """Yields the texts of each batch of all hosts on the first host, and nothing on the others."""
    for texts in batches:
        received = hosts.exchanged(texts if feeds else [])
        if hosts.is_first():
            yield sorted(itertools.chain.from_iterable(received), key=order)
