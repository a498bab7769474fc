"""The texts of a run, and the number of outputs of each."""

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

# Tokens times parameters that an encoder reads in the time that a program takes to compile.
COMPILING = 3e11
# What each kind has, and what to give.
_KINDS = {
    "task": ("num_input_examples", "a task, or the name of a registered one"),
    "vocabulary": ("load", tasks.VOCABULARIES),
    "draft_vocabulary": ("load", tasks.VOCABULARIES),
}


class TextList(tuple[tuple[str, str | None], ...]):
    """Texts that replace a task's: (input, reference) pairs.

    All have a reference, or none has (None).
    """

    def __repr__(self) -> str:
        return f"{len(self)} texts, the first {self[0][0][:30]!r}"

    @property
    def first(self) -> str:
        """The first input."""
        return self[0][0]


class TextStream:
    """Texts that replace a task's, and come one by one; the longest is not known."""

    def __init__(self, pairs: Iterable[tuple[str, str | None]]):
        self._pairs = iter(pairs)

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        while (pair := next(self._pairs, None)) is not None:
            yield pair

    @property
    def first(self) -> str:
        """The first input, which is read now."""
        pair = next(self._pairs)
        self._pairs = itertools.chain([pair], self._pairs)
        return pair[0]


class Previous(NamedTuple):
    """Previous outputs of given texts."""

    name: str  # what they were read from, for errors
    # one for each text, as text or as token ids, empty for none. None: the output for each text is
    # the previous output of the next one
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
    """The texts of a run; gin builds it, as `cli.Data`.

    Args:
      task: a task, or the name of a registered one.
      split: one of its splits.
      lengths: the longest 'inputs' and 'targets' in tokens.
      texts: texts that replace the task's, None for none.
      vocabulary: of texts that belong to no task; None for the one saved with the target.
      draft_vocabulary: of the drafter's models, if known; it must be the same.
      batch_size: rows that are decoded together.
      refill: whether a row whose text has ended gets the next text, see `decoding.refilling`.
      buckets: shorter input lengths to compile for, see `tasks.batches`.
      seed: of all random draws. The output for example i depends only on the seed and on i.
      limit: how many examples to decode, None for all.
      num_samples: outputs for each example, from different draws.
      samples_together: how many of them are rows of one call, on one device and unless rows are
        refilled. Each takes a row of the caches.
      decoder_prefix: the text that every output begins with.
      chat: whether each given text is a user's message, which the chat template of the target's
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
        """The lengths that inputs are padded to, ascending."""
        return (*self.buckets, self.lengths["inputs"])

    def source(
        self,
        share: Share,
        batch_size: int | None = None,
        vocabulary: tasks.LoadedVocabulary | None = None,
        target: Target | None = None,
    ) -> Source:
        """Returns the examples, or a share of them, in batches of `batch_size` rows.

        Args:
          share: the share of this host.
          batch_size: rows; None for the field's value.
          vocabulary: of given texts; a task has its own.
          target: the model whose inputs they are; None for ids padded as the vocabulary says.

        Raises:
          UsageError, TaskError: at the call.
        """
        sizes: dict[str, Any] = {"limit": self.limit, "buckets": self.buckets, "shard": share[:2]}
        sizes["batch_size"] = batch_size or self.batch_size
        if target is not None:
            sizes |= {"pad_id": target.pad_id, "shape": target.inputs_shape}
        if self.texts is not None:
            assert vocabulary is not None, "given texts have one"
            batches = tasks.text_batches(self.texts, vocabulary, self.lengths, **sizes)
            if isinstance(self.texts, TextStream):
                return Source(batches, is_there=False)
            return Source(list(batches))  # a text that is too long shows now
        if self.task is None:
            raise UsageError(
                "there is no task and no text; give --input_file or --text, or set TASK"
            )
        return Source(tasks.batches(self.task, self.split, self.lengths, **sizes))

    def within(self, room: int | None) -> Data:
        """Returns the data with inputs no longer than some tokens, if the texts are given.

        A task's texts are trimmed to the length of inputs, which a user states. Given texts are
        refused if they are longer, so their longest length is what models have room for.

        Args:
          room: the tokens that models have room for; None for any number.
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
        """Returns the number of examples without a limit; None if the source does not know."""
        if self.texts is not None:
            return len(self.texts) if isinstance(self.texts, TextList) else None
        return tasks.count(self.task, self.split)
