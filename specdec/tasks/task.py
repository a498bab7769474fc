"""Tasks: texts of one vocabulary, in splits, read as examples of token ids."""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from specdec.tasks.loading import TaskError
from specdec.tasks.vocabularies import LoadedVocabulary, detokenize, input_ids, output_ids

FEATURES = ("inputs", "targets")
FITS = 10_000_000  # examples; a larger split is treated as endless

# The features of an example of seqio: arrays, tensors or bytes, by names that its task chooses.
Raw: TypeAlias = Mapping[str, Any]


class Example(NamedTuple):
    """An example of a split; targets are None if the task has none."""

    inputs: np.ndarray  # [length] int32
    targets: np.ndarray | None  # [length] int32
    input_text: str
    target_text: str | None
    raw: Raw = {}  # of a seqio task: the fields that its postprocessing reads


class Task(abc.ABC):
    """A set of splits, each with examples.

    Attributes:
      name: the name by which it is registered.
      vocabulary: of inputs and targets.
      features: the names of an example's features.
      splits: the names of the splits.
      metric_fns: functions of targets and predictions, such as `metrics.bleu`.
    """

    name: str
    vocabulary: LoadedVocabulary
    features: Sequence[str] = FEATURES
    splits: Sequence[str]
    metric_fns: Sequence[Callable] = ()

    @abc.abstractmethod
    def num_input_examples(self, split: str) -> int | None:
        """Returns the number of examples of a split, or None if it is unknown."""

    @abc.abstractmethod
    def examples(self, split: str, lengths: Mapping[str, int], start: int = 0) -> Iterator[Example]:
        """Iterates over a split once, in its order.

        Args:
          split: one of the splits.
          lengths: feature -> the length in tokens that it is trimmed to, EOS included.
          start: the index of the first example.
        """

    def postprocess(self, text: str, example: Example, is_target: bool) -> object:
        """Returns a target or a prediction in the form that the metrics need."""
        del example, is_target
        return text

    def check_data(self) -> None:  # noqa: B027, most tasks have all that they read
        """Raises TaskError if data that the task reads are not on this machine."""

    def fits(self, split: str) -> bool:
        """Returns whether a split has at most `FITS` examples, so that memory can hold it."""
        size = self.num_input_examples(split)
        return size is not None and size <= FITS

    def stream(
        self, split: str, lengths: Mapping[str, int], seed: int, start: int = 0
    ) -> Iterator[Example]:
        """Yields examples without end, from place `start` on.

        A split that fits in memory is repeated, in each epoch in an order drawn from (seed, epoch).
        A larger one keeps its own order, for any seed.
        """
        size = self.num_input_examples(split)
        if not self.fits(split):
            while True:
                yield from self.examples(split, lengths, start % size if size else start)
                start = 0
        examples = list(self.examples(split, lengths))
        if not examples:
            raise TaskError("the split to train on is empty; give it examples")
        epoch, first = divmod(start, len(examples))
        for number in itertools.count(epoch):
            generator = np.random.default_rng([seed, *b"epoch", number])
            order = generator.permutation(len(examples))
            yield from (examples[i] for i in order[first:])
            first = 0


@dataclasses.dataclass(frozen=True, eq=False)
class TextTask(Task):
    """A task over pairs of texts that Python generates."""

    name: str  # the task's name
    # (split, place) -> the (input, target) pairs from there on. A target is text, token ids that
    # are used unchanged, or None. Text is trimmed and then ends in EOS, as in T5's training. The
    # vocabulary adds BOS and EOS to inputs; see `PlainVocabulary.framed`.
    source: Callable[[str, int], Iterator[tuple[str, str | Sequence[int] | None]]]
    sizes: Mapping[str, int]  # split -> its number of examples
    vocabulary: LoadedVocabulary  # of inputs and targets
    metric_fns: Sequence[Callable] = ()  # functions of targets and predictions

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self.sizes)

    def num_input_examples(self, split: str) -> int | None:
        return self.sizes[split]

    def examples(self, split: str, lengths: Mapping[str, int], start: int = 0) -> Iterator[Example]:
        for text, target in self.source(split, start):
            inputs = np.array(input_ids(self.vocabulary, text, lengths["inputs"]), np.int32)
            if not inputs.size:
                raise TaskError(
                    f"task {self.name!r} has the input {text!r}, a prompt without a token; give it "
                    "some text"
                )
            if target is None:
                yield Example(inputs, None, text, None)
                continue
            if isinstance(target, str):
                room = lengths["targets"] - 1
                ids = [*output_ids(self.vocabulary, target, text)[:room], self.vocabulary.eos_id]
                shown = target
            else:
                ids = target[: lengths["targets"]]
                shown = detokenize(self.vocabulary, target, text)
            yield Example(inputs, np.array(ids, np.int32), text, shown)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Task):
    """Examples of several tasks with one vocabulary, in random order."""

    name: str  # the mixture's name
    parts: Sequence[Task]  # the tasks
    rates: Sequence[float]  # how often an example comes from each task, relative to the others

    @property
    def vocabulary(self) -> LoadedVocabulary:
        return self.parts[0].vocabulary

    @property
    def features(self) -> Sequence[str]:
        return self.parts[0].features

    @property
    def splits(self) -> Sequence[str]:
        first, *others = (part.splits for part in self.parts)
        return [split for split in first if all(split in other for other in others)]

    def check_data(self) -> None:
        for part in self.parts:
            part.check_data()

    def num_input_examples(self, split: str) -> int | None:
        sizes = [part.num_input_examples(split) for part in self.parts]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def examples(self, split: str, lengths: Mapping[str, int], start: int = 0) -> Iterator[Example]:
        return itertools.islice(self._once(split, lengths), start, None)

    def _once(self, split: str, lengths: Mapping[str, int]) -> Iterator[Example]:
        """Yields all examples of all tasks once, in random order."""
        draws = random.Random(0)
        streams = (part.examples(split, lengths) for part in self.parts)
        rates = dict(zip(streams, self.rates, strict=True))
        while rates:
            [chosen] = draws.choices(list(rates), list(rates.values()))
            if (example := next(chosen, None)) is None:
                del rates[chosen]
            else:
                yield example

    def stream(
        self, split: str, lengths: Mapping[str, int], seed: int, start: int = 0
    ) -> Iterator[Example]:
        """Yields examples of the tasks' streams without end, each from a task drawn by `rates`.

        The seed determines these tasks, so no example before `start` is made.
        """
        numbers, draws = range(len(self.parts)), random.Random(seed)
        chosen = (draws.choices(numbers, self.rates)[0] for _ in itertools.count())
        begun = collections.Counter(itertools.islice(chosen, start))
        streams = [part.stream(split, lengths, seed, begun[i]) for i, part in enumerate(self.parts)]
        return (next(streams[i]) for i in chosen)
