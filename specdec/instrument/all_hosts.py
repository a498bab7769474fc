"""Texts that several hosts decode, gathered on the first host."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from specdec import tasks
from specdec.common import hosts

T = TypeVar("T")


def gathered(
    decode: Callable[[Iterable[tasks.Batch], Any], Iterator[T]],
    batches: Iterable[tasks.Batch],
    summary: Any,
    *,
    feeds: bool,
    order: Callable[[T], Any],
) -> Iterator[T]:
    """Yields the texts of all hosts on the first host, after each batch, and nothing on the others.

    Args:
      decode: decodes batches of this host, and adds their figures to a summary.
      batches: of this host; all hosts have the same number.
      summary: the figures of all hosts, on the first. The times are those of the first host.
      feeds: whether this host is the first that feeds its rows (`Share.first`).
      order: the place of a text among those of a batch.
    """
    if jax.process_count() == 1:
        yield from decode(batches, summary)
        return
    for batch in batches:
        own = summary if hosts.is_first() else type(summary)()
        texts = list(decode([batch], own))
        sent = (texts, own) if feeds and not hosts.is_first() else ([], None)
        received = hosts.exchanged(sent)
        if hosts.is_first():
            for figures in (one for _, one in received if one is not None):
                _add(summary, figures)
            others: Sequence[T] = list(itertools.chain.from_iterable(one for one, _ in received))
            yield from sorted([*texts, *others], key=order)


def _add(summary: Any, figures: Any) -> None:
    """Adds the counts of another host."""
    for name in (field.name for field in dataclasses.fields(summary)):
        if type(count := getattr(figures, name)) in (int, list):
            setattr(summary, name, getattr(summary, name) + count)
