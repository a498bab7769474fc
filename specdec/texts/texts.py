"""The settings of a run's texts: their origin, lengths, batches, and number of samples."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specdec import tasks
from specdec.common.values import Checked, PositiveInt, Seed, Text, UsageError, check_has, check_is
from specdec.models.contract.model import Target
from specdec.models.partitioning import Share
from specdec.texts.sources import Source

# Padding, in tokens times the target's parameters, that costs less time than one more program. On
# two cores of an EPYC, 20 texts of five lengths take 0.74 of the time with T5-large's sizes.
COMPILING = 8e11
# Field of Data -> a method that its value must have, and the remedy for an error message.
_KINDS = {
    "task": ("num_input_examples", "a task, or the name of a registered one"),
    "vocabulary": ("load", tasks.VOCABULARIES),
    "draft_vocabulary": ("load", tasks.VOCABULARIES),
}


class TextList(tuple[tuple[str, str | None], ...]):
    """Texts of a file or of flags, in place of a task's: (input, reference) pairs.

    Either all texts have a reference, or all references are None.
    """

    def __repr__(self) -> str:
        return f"{len(self)} texts, the first {self[0][0][:30]!r}"

    @property
    def first(self) -> str:
        """The first input."""
        return self[0][0]


class TextStream:
    """Texts that come one by one, such as standard input, in place of a task's texts."""

    def __init__(self, pairs: Iterable[tuple[str, str | None]]):
        self._pairs = iter(pairs)

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        while (pair := next(self._pairs, None)) is not None:
            yield pair

    @property
    def first(self) -> str:
        """The first input; reading it waits until it has come."""
        pair = next(self._pairs)
        self._pairs = itertools.chain([pair], self._pairs)
        return pair[0]


class Previous(NamedTuple):
    """The previous outputs of a run's texts."""

    name: str  # the origin of the outputs, for error messages
    # an output for each text, as text or token ids, empty for none. None if the output for each
    # text is the previous output of the next one
    outputs: Sequence[str | Sequence[int]] | None

    def ids(self, vocabulary: tasks.LoadedVocabulary) -> list[Sequence[int]]:
        """Returns the outputs as token ids, with EOS; () for none."""

        def ids(output: str | Sequence[int]) -> Sequence[int]:
            if not isinstance(output, str):
                return output
            return [*vocabulary.encode(output), vocabulary.eos_id] if output else ()

        return list(map(ids, self.outputs or ()))


@dataclasses.dataclass(frozen=True)
class Data(Checked):
    """The texts of a run, and how they are batched and sampled; gin builds it as `cli.Data`.

    Args:
      task: a task, or the name of a registered one.
      split: one of the task's splits.
      lengths: the maximum lengths of 'inputs' and 'targets' in tokens.
      texts: texts of a file or of flags, in place of the task's; None for the task's.
      vocabulary: the vocabulary of `texts`; None for the one saved with the target.
      draft_vocabulary: the vocabulary of the drafter's models, if known; it must be the same.
      batch_size: rows that are decoded together.
      refill: whether a row whose text has ended gets the next text, see `decoding.refilling`.
      buckets: shorter input lengths to compile for, see `tasks.batches`.
      seed: the seed of random numbers. The output for example i depends only on the seed and on i.
      limit: the number of examples to decode; None for all.
      num_samples: the number of sampled outputs for each example.
      samples_together: the number of these samples that are rows of one call. It applies on one
        device, if rows are not refilled; each sample needs a row of the caches.
      decoder_prefix: the text that every output begins with.
      chat: whether each of `texts` is a user's message, which the chat template of the target's
        checkpoint turns into a prompt.

    Raises:
      ValueError: a field has the wrong type, or is out of range.
    """

    task: Any
    split: Text
    lengths: Mapping[str, int]
    texts: TextList | TextStream | None = None
    vocabulary: tasks.VocabularyDefinition | None = None
    draft_vocabulary: tasks.VocabularyDefinition | None = None
    batch_size: PositiveInt = 1
    buckets: Sequence[int] = ()
    seed: Seed = 0
    limit: PositiveInt | None = None
    num_samples: PositiveInt = 1
    samples_together: PositiveInt = 1
    decoder_prefix: Text = ""
    chat: bool = False
    refill: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name, (method, remedy) in _KINDS.items():
            value = getattr(self, name)
            if not (value is None or name == "task" and isinstance(value, str)):
                check_has(f"Data.{name}", value, method, remedy)
        check_is("Data.chat", self.chat, bool, "True or False")
        check_is("Data.refill", self.refill, bool, "True or False")
        if self.chat and self.task is not None:
            raise ValueError(
                "CHAT is for given texts, and the run has a task; leave it out, or give "
                "--input_file=FILE and --gin.TASK=None"
            )
        if not isinstance(self.texts, TextStream):
            check_is("Data.texts", self.texts or TextList(), TextList, "INPUT_FILE or INPUT_TEXTS")
        for side in ("inputs", "targets"):
            tasks.length_of(self.lengths, side)
        tasks.check_sizes(self.lengths, self.batch_size, self.limit, self.buckets)

    @property
    def widths(self) -> tuple[int, ...]:
        """The lengths to which inputs are padded, ascending."""
        return (*self.buckets, self.lengths["inputs"])

    def source(
        self,
        share: Share,
        batch_size: int | None = None,
        vocabulary: tasks.LoadedVocabulary | None = None,
        target: Target | None = None,
    ) -> Source:
        """Returns this host's share of the examples, in batches of `batch_size` rows.

        Args:
          share: the share of this host.
          batch_size: rows; None for `self.batch_size`.
          vocabulary: the vocabulary of `self.texts`; a task has its own.
          target: the model that reads the inputs; None for ids padded with the vocabulary's pad id.

        Raises:
          UsageError, TaskError: the examples cannot be read, or a text is too long.
        """
        sizes: dict[str, Any] = {"limit": self.limit, "buckets": self.buckets, "shard": share[:2]}
        sizes["batch_size"] = batch_size or self.batch_size
        if target is not None:
            sizes |= {"pad_id": target.pad_id, "shape": target.inputs_shape}
        if self.texts is not None:
            assert vocabulary is not None, "texts of no task need a vocabulary"
            batches = tasks.text_batches(self.texts, vocabulary, self.lengths, **sizes)
            if isinstance(self.texts, TextStream):
                return Source(batches, is_there=False)
            return Source(list(batches))  # so that a text that is too long raises here
        if self.task is None:
            raise UsageError(
                "there is no task and no text; give --input_file or --text, or set TASK"
            )
        return Source(tasks.batches(self.task, self.split, self.lengths, **sizes))

    def within(self, room: int | None) -> Data:
        """Returns the data with the maximum input length lowered to `room` tokens, for `texts`.

        Longer `texts` are then refused. A task's texts are trimmed to the length in `lengths`, so
        the data is returned unchanged for a task.

        Args:
          room: the longest input that the models can read, in tokens; None for any length.
        """
        if self.texts is None or room is None or not 0 < room < self.lengths["inputs"]:
            return self
        buckets = tuple(width for width in self.buckets if width < room)
        lengths = {**self.lengths, "inputs": room}
        return dataclasses.replace(self, lengths=lengths, buckets=buckets)

    def fitted(self, vocabulary: tasks.LoadedVocabulary, parameters: int) -> Data:
        """Returns the data with the buckets that the given texts need, if all texts are known.

        The length of inputs becomes the bucket of the longest text. A shorter bucket is left out if
        to pad its texts to the next one costs less than to compile a program for it.

        Args:
          vocabulary: encodes the texts.
          parameters: the number of the target's parameters.
        """
        if not isinstance(self.texts, TextList):
            return self
        inputs = (text for text, _ in self.texts[: self.limit])
        lengths = [len(tasks.input_ids(vocabulary, text)) for text in inputs]
        holding = (next((x for x in self.widths if x >= n), self.widths[-1]) for n in lengths)
        needed, padded = collections.Counter(holding), collections.Counter[int]()
        buckets, widths = [], sorted(needed)
        for width, wider in itertools.pairwise(widths):
            padded[width] = needed[width]
            tokens = sum(count * (wider - own) for own, count in padded.items())
            if tokens * parameters > COMPILING:
                buckets.append(width)
                padded.clear()
        lengths_of = {**self.lengths, "inputs": widths[-1]}
        return dataclasses.replace(self, lengths=lengths_of, buckets=tuple(buckets))

    def count(self) -> int | None:
        """Returns the number of examples, ignoring `limit`; None if it is not known."""
        if self.texts is not None:
            return len(self.texts) if isinstance(self.texts, TextList) else None
        return tasks.count(self.task, self.split)
