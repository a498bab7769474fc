"""Batches as a function of (seed, k), so that a run can be resumed at any step.

The examples are an unlimited sequence, `Task.stream`, and batch k comes from a window of it. Within
a window the examples are sorted by length, so that a batch needs little padding. The batches are
then put in an order drawn from (seed, window).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from specdec import tasks
from specdec.tasks.plain import Inputs
from specdec.training.loss import Pairs
from specdec.training.training_error import TrainingError

# Makes the inputs of a model from ids [B, S] and their texts.
MakeInputs: TypeAlias = Callable[[np.ndarray, Sequence[str]], Inputs]
WINDOW = 32  # batches that are sorted by length together


class TokenPair(NamedTuple):
    """An input and its target as token ids."""

    inputs: np.ndarray  # [length] int32
    targets: np.ndarray  # [length] int32
    text: str = ""  # of the input, which may name pictures or sound


class Batches:
    """A sequence in which `batches[k]` is the k-th training batch.

    Access is fast if k follows the previous k.

    Args:
      task: a task or mixture, or its name.
      split: the split to read.
      lengths: the longest 'inputs' and 'targets', in tokens.
      batch_size: rows of a batch.
      seed: the seed of the order.
      buckets: the number of shapes of batches, see `pack`.
      pad_id: the id that rows are filled up with.
      make: makes the model's inputs from ids and texts; None for ids alone.
    """

    def __init__(
        self,
        task: str | tasks.Task,
        split: str,
        lengths: Mapping[str, int],
        *,
        batch_size: int,
        seed: int,
        buckets: int,
        pad_id: int,
        make: MakeInputs | None = None,
    ):
        self._read, self._make = reader(task, split, lengths, seed), make
        self._lengths, self._size, self._buckets = lengths, batch_size, buckets
        self._seed, self._pad_id = seed, pad_id
        self._window: tuple[int, list[Pairs]] = (-1, [])

    def __getitem__(self, k: int) -> Pairs:
        """Returns batch k: inputs [B, S'] and targets [B, T'] of the smallest bucket that fits."""
        number, index = divmod(k, WINDOW)
        if number != self._window[0]:
            self._window = number, self._batches(number)
        return self._window[1][index]

    def _batches(self, number: int) -> list[Pairs]:
        count = WINDOW * self._size
        examples = list(itertools.islice(self._read(number * count), count))
        sizes = self._size, self._buckets, self._pad_id
        packed = pack(examples, self._lengths, *sizes, self._make)
        order = np.random.default_rng([self._seed, *b"window", number]).permutation(WINDOW)
        return [packed[i] for i in order]


def pack(
    examples: Iterable[TokenPair],
    lengths: Mapping[str, int],
    size: int,
    buckets: int,
    pad_id: int,
    make: MakeInputs | None = None,
) -> list[Pairs]:
    """Returns batches of `size` rows, shortest examples first, filled up with rows of padding.

    Shapes are i/buckets of both `lengths` for i in 1..buckets, so that at most `buckets` programs
    are compiled.
    """
    limits = lengths["inputs"], lengths["targets"]

    def fill(example: TokenPair) -> float:
        return max(len(x) / limit for x, limit in zip(example[:2], limits, strict=True))

    ordered, packed = sorted(examples, key=fill), []
    for start in range(0, len(ordered), size):
        rows = ordered[start : start + size]
        bucket = max(1, int(np.ceil(fill(rows[-1]) * buckets)))
        widths = [-(-limit * bucket // buckets) for limit in limits]
        inputs, targets = (
            _padded(column, size, width, pad_id)
            for column, width in zip(
                zip(*(row[:2] for row in rows), strict=True), widths, strict=True
            )
        )
        model_inputs = make(inputs, [row.text for row in rows]) if make else inputs
        packed.append(Pairs(model_inputs, targets))
    return packed


def read_split(
    task: str | tasks.Task, split: str, lengths: Mapping[str, int]
) -> Iterator[TokenPair]:
    """Iterates over a whole split, in its order."""
    task = tasks.get_task(task, split)
    return _pairs(task, task.examples(split, lengths))


def reader(
    task: str | tasks.Task, split: str, lengths: Mapping[str, int], seed: int
) -> Callable[[int], Iterator[TokenPair]]:
    """Returns a function: place in the unlimited sequence -> the examples from there on.

    Continuing at the current place reads on. Any other place opens a new stream.
    """
    task = tasks.get_task(task, split)
    rest: Iterator[TokenPair] = iter(())
    position = -1

    def read(start: int) -> Iterator[TokenPair]:
        nonlocal rest, position
        if start != position:
            rest, position = _pairs(task, task.stream(split, lengths, seed, start)), start
        for example in rest:
            position += 1
            yield example

    return read


def _pairs(task: tasks.Task, examples: Iterable[tasks.Example]) -> Iterator[TokenPair]:
    for example in examples:
        if example.targets is None:
            raise TrainingError(f"task {task.name!r} has no targets; training needs pairs of texts")
        yield TokenPair(example.inputs, example.targets, example.input_text)


def _padded(rows: Sequence[np.ndarray], size: int, width: int, pad_id: int) -> np.ndarray:
    array = np.full([size, width], pad_id, np.int32)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
