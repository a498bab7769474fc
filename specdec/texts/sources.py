"""The sources of a run's texts: a task, texts of a file or flag, or texts that come one by one.

A source yields batches of texts; each text has an index and an input. The input of a sound or
picture is the name of its file. Time series are texts of numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from specdec import tasks
from specdec.common.decoded import DecodedText
from specdec.common.values import UsageError


class Source:
    """An iterator over batches of texts, which can be read once.

    If `is_there`, `length` may read the first batch in advance; a pipe may not have any text yet.
    """

    def __init__(self, batches: Iterable[tasks.Batch], *, is_there: bool = True):
        self._batches, self._is_there = iter(batches), is_there

    def __iter__(self) -> Iterator[tasks.Batch]:
        while (batch := next(self._batches, None)) is not None:
            yield batch

    def length(self) -> int | None:
        """Returns the number of tokens to which inputs of the first batch are padded.

        Returns None if there is no text, or if the source is not `is_there`.
        """
        first = list(itertools.islice(self._batches, self._is_there))
        self._batches = itertools.chain(first, self._batches)
        return first[0].ids.shape[1] if first else None

    def answered(self, text: DecodedText) -> None:
        """Receives each decoded text, before the next batch is read."""


class Sounds(Source):
    """Names of sounds of any length, whose features are read when their batch is reached."""

    def __init__(
        self,
        texts: Iterable[tuple[str, str | None]],
        features: Callable[[str], np.ndarray],
        *,
        batch_size: int,
        limit: int | None,
    ):
        names = (name for name, _ in itertools.islice(texts, limit))
        super().__init__(self._read(names, features, batch_size), is_there=False)

    @staticmethod
    def _read(
        names: Iterator[str], features: Callable[[str], np.ndarray], rows: int
    ) -> Iterator[tasks.Batch]:
        begin = 0
        while texts := list(itertools.islice(names, rows)):
            index = np.full(rows, -1, np.int32)
            index[: len(texts)] = np.arange(begin, begin + len(texts))
            sounds, no_ids = list(map(features, texts)), np.zeros([rows, 0], np.int32)
            yield tasks.Batch(sounds, no_ids, index, texts, None, None)
            begin += rows


class RevisedTexts(Source):
    """Texts with their previous outputs, of which a drafter copies tokens.

    `outputs` are lists of token ids, padded to `width`; `name` is their origin, for errors."""

    def __init__(self, source: Source, outputs: Sequence[Sequence[int]], width: int, name: str):
        super().__init__(map(self._revised, source))
        self._source, self._outputs = source, outputs
        self._width, self._name = width, name

    def length(self) -> int | None:
        return self._source.length()

    def _revised(self, batch: tasks.Batch) -> tasks.Batch:
        return batch.revised([self._of(int(i)) for i in batch.index if i >= 0], self._width)

    def _of(self, index: int) -> Sequence[int]:
        if index >= len(self._outputs):
            raise UsageError(
                f"{self._name} has {len(self._outputs)} outputs, and there is a text {index + 1}; "
                "give an output for each text, an empty line for none"
            )
        return self._outputs[index]


class Live(RevisedTexts):
    """Successive versions of one text; the output for each version is the next one's previous."""

    def __init__(self, source: Source, width: int):
        super().__init__(source, (), width, "")
        self._last: Sequence[int] = ()

    def _of(self, index: int) -> Sequence[int]:
        return self._last

    def answered(self, text: DecodedText) -> None:
        self._last = text.tokens
