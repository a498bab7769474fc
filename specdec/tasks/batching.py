"""Batches of texts in NumPy arrays of few shapes, in the order of the data."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from specdec.common.values import PositiveInt, check, is_integer
from specdec.tasks.loading import TaskError
from specdec.tasks.plain import Inputs, InputsShape
from specdec.tasks.registry import get_task
from specdec.tasks.task import FEATURES, Example, Task
from specdec.tasks.vocabularies import (
    LoadedVocabulary,
    has_prompts,
    input_ids,
    inputs_of,
    output_ids,
)

ShapeOf: TypeAlias = Callable[[int, int], InputsShape]  # rows, length -> shapes and dtypes
LENGTHS = "{'inputs': 64, 'targets': 64}"  # an example


class Batch(NamedTuple):
    """A batch of texts as token ids, and pictures or sound that the texts name.

    Rows after the last example of the data are padding only, with index -1 and no text.
    """

    inputs: Inputs  # what a target reads: `ids`, or a pytree with other arrays, see `media`
    ids: np.ndarray  # [B, S] int32, of the texts, filled up with pad_id
    index: np.ndarray  # [B] int32, the example's place in the split, whatever the shard
    input_texts: list[str]  # one per example, at most B
    target_texts: list[str] | None  # None if the task has no targets
    targets: np.ndarray | None  # [B, N] int32, filled up with pad_id
    pad_id: int = 0
    previous: np.ndarray | None = None  # [B, P] int32, previous outputs, filled up with pad_id

    def revised(self, previous: Sequence[Sequence[int]], width: int) -> Batch:
        """Returns the batch with previous outputs of its examples.

        Args:
          previous: the token ids of each example's previous output; () for none.
          width: P, the length to which outputs are cut.
        """
        rows = [np.array(ids[:width], np.int32) for ids in previous]
        filled = _filled_up(rows, size=len(self.index), width=width, pad_id=self.pad_id)
        return self._replace(previous=filled)


def batches(
    task: str | Task,
    split: str,
    lengths: Mapping[str, int],
    *,
    batch_size: int,
    limit: int | None = None,
    buckets: Sequence[int] = (),
    shard: tuple[int, int] = (0, 1),
    pad_id: int | None = None,
    shape: ShapeOf | None = None,
) -> Iterator[Batch]:
    """Iterates over a split once, unshuffled, in full batches.

    Args:
      task: a task, or the name of a registered one.
      split: one of its splits.
      lengths: feature -> the length it is trimmed to; 'inputs' is S, 'targets' is N.
      batch_size: B, also of the last batch.
      limit: the number of examples to stop after.
      buckets: ascending lengths below `lengths['inputs']`. A batch gets the smallest one that holds
        its longest row, or else S. Each length in use is compiled once.
      shard: (k, n) for host k of n, which gets the examples i with i % n == k. All hosts get the
        same number of batches, of equal shapes, as a program over all hosts needs. The last batch
        of some may therefore be only padding. Each host reads the whole split, so that an example's
        index does not depend on how files are divided.
      pad_id: the model's id of padding; None for the vocabulary's.
      shape: the model's `Target.inputs_shape`, (rows, length) -> the shapes of its inputs; None for
        ids alone.

    Returns:
      The batches.

    Raises:
      TaskError: at the call, not at the first batch, if an argument is wrong or data are missing.
    """
    task = get_task(task, split)
    check_lengths(task, lengths)
    sizes = check_sizes(lengths, batch_size, limit, buckets)
    if not 0 <= shard[0] < shard[1]:
        raise TaskError(f"shard is {shard}; give (k, n) for the k-th of n hosts, 0 <= k < n")
    examples = itertools.islice(task.examples(split, lengths), limit)
    make = _Maker(task.vocabulary, _pad_id(pad_id, task.vocabulary), shape)
    return _batches(examples, batch_size, *sizes, make, shard)


def text_batches(
    texts: Iterable[tuple[str, str | None]],
    vocabulary: LoadedVocabulary,
    lengths: Mapping[str, int],
    *,
    batch_size: int,
    limit: int | None = None,
    buckets: Sequence[int] = (),
    shard: tuple[int, int] = (0, 1),
    pad_id: int | None = None,
    shape: ShapeOf | None = None,
) -> Iterator[Batch]:
    """Iterates over texts that belong to no task, in full batches.

    EOS is appended to targets, and to inputs if the vocabulary defines it so. Texts are read when
    their batch is needed. A prompt that is too long loses its first tokens.

    Args:
      texts: (input, target or None); all or none of them have targets.
      vocabulary: encodes the texts.
      lengths: the most tokens of a text: 'inputs' -> S, 'targets' -> N.
      batch_size: B.
      limit: the number of texts to stop after.
      buckets: ascending lengths of inputs below S, as for `batches`.
      shard: (k, n) for host k of n, as for `batches`.
      pad_id: the model's id of padding; None for the vocabulary's.
      shape: (rows, length) -> the shapes of the model's inputs; None for ids alone.

    Returns:
      The batches.

    Raises:
      TaskError: at the call for a wrong argument, and at its batch for a text that is too long.
    """
    sizes = check_sizes(lengths, batch_size, limit, buckets)
    _refuse_unknown(lengths, FEATURES)

    def encode(number: int, side: str, text: str, source: str = "") -> np.ndarray:
        if side == "inputs":
            ids = input_ids(vocabulary, text, lengths[side] if has_prompts(vocabulary) else None)
        else:
            ids = [*output_ids(vocabulary, text, source), vocabulary.eos_id]
        if not ids:
            raise TaskError(f"text {number} is {text!r}, a prompt without a token; give some text")
        if len(ids) > lengths[side]:
            needed = {**lengths, side: len(ids)}
            raise TaskError(
                f"text {number} is {len(ids)} tokens long ({text[:30]!r}...) but {side} hold "
                f'{lengths[side]}; give --gin.TASK_FEATURE_LENGTHS="{needed}", in Python '
                f"lengths={needed}, or shorten the text"
            )
        return np.array(ids, np.int32)

    def examples() -> Iterator[Example]:
        for number, (text, target) in enumerate(itertools.islice(texts, limit), start=1):
            ids = None if target is None else encode(number, "targets", target, text)
            yield Example(encode(number, "inputs", text), ids, text, target)

    make = _Maker(vocabulary, _pad_id(pad_id, vocabulary), shape)
    return _batches(examples(), batch_size, *sizes, make, shard)


def count(task: str | Task, split: str) -> int | None:
    """Returns the number of examples of a split, or None if it is unknown.

    Args:
      task: a task, or its name.
      split: one of its splits.
    """
    return get_task(task, split).num_input_examples(split)


def check_lengths(task: str | Task, lengths: Mapping[str, int]) -> None:
    """Raises TaskError unless there is a length for each feature of the task, and for no other.

    Args:
      task: a task, or its name.
      lengths: feature -> length in tokens.
    """
    task = get_task(task)
    for feature in task.features:
        length_of(lengths, feature)
    _refuse_unknown(lengths, task.features)


def length_of(lengths: object, feature: str) -> int:
    """Returns the length that a feature is trimmed to, in tokens.

    Args:
      lengths: feature -> length in tokens.
      feature: 'inputs' or 'targets'.

    Raises:
      TaskError: there is no such length.
    """
    if not isinstance(lengths, Mapping):
        raise TaskError(f"lengths is {lengths!r}; give a Mapping, as in {LENGTHS}")
    length = lengths.get(feature)
    if not is_integer(length, 1):
        raise TaskError(
            f"no sequence length for {feature!r} in {dict(lengths)}; give one, as in {LENGTHS}"
        )
    return length


def _refuse_unknown(lengths: Mapping[str, int], features: Sequence[str]) -> None:
    for name in lengths:
        if name not in features:
            raise TaskError(
                f"there is no feature {name!r} in the feature lengths {dict(lengths)}; leave it "
                f"out, the features are {' and '.join(features)}"
            )


def check_sizes(
    lengths: Mapping[str, int], batch_size: int, limit: int | None, buckets: Sequence[int]
) -> tuple[list[int], int]:
    """Returns the lengths that inputs may have, ascending, and the length of targets (0 for none).

    Args:
      lengths: 'inputs' -> S, 'targets' -> N.
      batch_size: B.
      limit: the number of examples, or None.
      buckets: lengths of inputs below S.

    Raises:
      TaskError: an argument is wrong.
    """
    check("batch_size", batch_size, PositiveInt, TaskError)
    check("limit", limit, PositiveInt | None, TaskError)
    longest = lengths["inputs"]
    widths = [*buckets, longest] if isinstance(buckets, list | tuple) else []
    ascending = all(is_integer(width, 1) for width in widths) and widths == sorted(set(widths))
    if not widths or not ascending:
        raise TaskError(f"buckets is {buckets!r}; give ascending lengths below {longest}, or ()")
    return widths, lengths.get("targets", 0)


def _pad_id(pad_id: int | None, vocabulary: LoadedVocabulary) -> int:
    id = vocabulary.pad_id if pad_id is None else pad_id
    if id is None:
        raise TaskError("the vocabulary has no id of padding; give the model's, as in pad_id=1")
    return id


class _Maker(NamedTuple):
    """Makes the inputs of a model from ids and texts."""

    vocabulary: LoadedVocabulary
    pad_id: int
    shape: ShapeOf | None

    def inputs(self, ids: np.ndarray, texts: Sequence[str]) -> Inputs:
        """Returns the inputs of ids [B, S] and their texts, at most B."""
        return ids if self.shape is None else inputs_of(self.vocabulary, ids, texts, self.shape)


def _batches(
    examples: Iterable[Example],
    size: int,
    widths: Sequence[int],
    longest_target: int,
    make: _Maker,
    shard: tuple[int, int],
) -> Iterator[Batch]:
    host, hosts = shard
    fill = functools.partial(_filled_up, size=size, pad_id=make.pad_id)
    examples, start = iter(examples), 0
    while everybody := list(itertools.islice(examples, size * hosts)):
        rows = everybody[host::hosts]
        longest = max(len(row.inputs) for row in everybody)
        width = next(width for width in widths if width >= longest)
        index = np.full([size], -1, np.int32)
        index[: len(rows)] = start + host + hosts * np.arange(len(rows))
        have_targets = everybody[0].targets is not None
        targets = [row.targets for row in rows if row.targets is not None]
        texts = [row.target_text for row in rows if row.target_text is not None]
        input_texts = [row.input_text for row in rows]
        ids = fill([row.inputs for row in rows], width=width)
        yield Batch(
            inputs=make.inputs(ids, input_texts),
            ids=ids,
            index=index,
            input_texts=input_texts,
            target_texts=texts if have_targets else None,
            targets=fill(targets, width=longest_target) if have_targets else None,
            pad_id=make.pad_id,
        )
        start += len(everybody)


def _filled_up(rows: Sequence[np.ndarray], *, size: int, width: int, pad_id: int) -> np.ndarray:
    array = np.full([size, width], pad_id, np.int32)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
