"""Batches as a function of (seed, k), so that a run can be resumed at any step.

The examples are an endless sequence, and batch k comes from a window of it:

    a split that fits        epoch after epoch, each in an order drawn from (seed, epoch)
    an endless split         in the task's own order, whatever the seed
    a mixture                as seqio mixes it, shuffled with the seed if all of it fits

Within a window the examples are sorted by length, so that a batch needs little padding, and the
batches are then put in an order drawn from (seed, window).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec import tasks
from specdec.tasks.loading import load_seqio
from specdec.training.loss import Pairs
from specdec.training.training_error import TrainingError

WINDOW = 32  # batches that are sorted by length together
FITS = 10_000_000  # examples; a split of more is as good as endless


class Example(NamedTuple):
    inputs: np.ndarray  # [length] int32
    targets: np.ndarray  # [length] int32


class Batches:
    """`batches[k]` is the k-th training batch; nearly free when k follows the last one."""

    def __init__(
        self,
        task: Any,
        split: str,
        lengths: Mapping[str, int],
        *,
        batch_size: int,
        seed: int,
        buckets: int,
    ):
        self._read = reader(tasks.get_task(task, split), split, lengths, seed)
        self._lengths, self._size, self._buckets = lengths, batch_size, buckets
        self._seed = seed
        self._window: tuple[int, list[Pairs]] = (-1, [])

    def __getitem__(self, k: int) -> Pairs:
        """Inputs [B, S'] and targets [B, T'], with S' and T' of the smallest bucket that fits."""
        number, place = divmod(k, WINDOW)
        if number != self._window[0]:
            self._window = number, self._batches(number)
        return self._window[1][place]

    def _batches(self, number: int) -> list[Pairs]:
        count = WINDOW * self._size
        examples = list(itertools.islice(self._read(number * count), count))
        packed = pack(examples, self._lengths, self._size, self._buckets)
        return [packed[i] for i in _random(self._seed, "window", number).permutation(WINDOW)]


def pack(
    examples: Iterable[Example], lengths: Mapping[str, int], size: int, buckets: int
) -> list[Pairs]:
    """Batches of `size` rows, shortest examples first; missing rows of the last one are zeros.

    Shapes are i/buckets of both `lengths` for some i in 1..buckets: so many programs are compiled.
    """
    limits = lengths["inputs"], lengths["targets"]

    def fill(example: Example) -> float:
        return max(len(x) / limit for x, limit in zip(example, limits, strict=True))

    ordered, packed = sorted(examples, key=fill), []
    for start in range(0, len(ordered), size):
        rows = ordered[start : start + size]
        bucket = max(1, int(np.ceil(fill(rows[-1]) * buckets)))
        widths = [-(-limit * bucket // buckets) for limit in limits]
        inputs, targets = (
            _padded(column, size, width)
            for column, width in zip(zip(*rows, strict=True), widths, strict=True)
        )
        packed.append(Pairs(inputs, targets))
    return packed


def read_split(task: Any, split: str, lengths: Mapping[str, int]) -> list[Example]:
    """A whole split, in its order."""
    return list(_examples(tasks.get_task(task, split), split, lengths, num_epochs=1, shuffle=False))


def reader(
    task: Any, split: str, lengths: Mapping[str, int], seed: int
) -> Callable[[int], Iterator[Example]]:
    """A function: place in the endless sequence -> the examples from there on."""
    small = fits(task, split)
    if small and not isinstance(task, load_seqio().Mixture):
        return _Shuffled(read_split(task, split, lengths), seed).read
    # Without a shuffle seqio takes no seed, and mixes by a fixed one.
    order = {"shuffle": True, "seed": seed} if small else {"shuffle": False}
    return _Stream(task, split, lengths, order).read


def fits(task: Any, split: str) -> bool:
    """Whether a split can be held in memory, and so has an end."""
    task = tasks.get_task(task, split)
    parts = task.tasks if isinstance(task, load_seqio().Mixture) else [task]
    sizes = [part.num_input_examples(split) for part in parts]
    return all(size is not None and size <= FITS for size in sizes)


class _Shuffled:
    def __init__(self, examples: Sequence[Example], seed: int):
        if not examples:
            raise TrainingError("the split to train on is empty; give it examples")
        self._examples, self._seed = examples, seed

    def read(self, start: int) -> Iterator[Example]:
        epoch, place = divmod(start, len(self._examples))
        for number in itertools.count(epoch):
            order = _random(self._seed, "epoch", number).permutation(len(self._examples))
            yield from (self._examples[i] for i in order[place:])
            place = 0


class _Stream:
    """Reads on where it is; any other place means reading up to it from the beginning."""

    def __init__(self, task: Any, split: str, lengths: Mapping[str, int], order: Mapping[str, Any]):
        self._open = lambda skip: _examples(
            task, split, lengths, num_epochs=None, skip=skip, **order
        )
        self._rest: Iterator[Example] = iter(())
        self._place = -1

    def read(self, start: int) -> Iterator[Example]:
        if start != self._place:
            self._rest, self._place = self._open(start), start
        for example in self._rest:
            self._place += 1
            yield example


def _examples(
    task: Any, split: str, lengths: Mapping[str, int], *, skip: int = 0, **order
) -> Iterator[Example]:
    dataset = task.get_dataset(dict(lengths), split, try_in_mem_cache=False, **order)
    for example in dataset.skip(skip).as_numpy_iterator():
        if "targets" not in example:
            raise TrainingError(f"task {task.name!r} has no targets; training needs pairs of texts")
        yield Example(example["inputs"].astype(np.int32), example["targets"].astype(np.int32))


def _padded(rows: Sequence[np.ndarray], size: int, width: int) -> np.ndarray:
    array = np.zeros([size, width], np.int32)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def _random(seed: int, purpose: str, number: int) -> np.random.Generator:
    """A generator of its own for each purpose and number, without those before it."""
    return np.random.default_rng([seed, *purpose.encode(), number])
