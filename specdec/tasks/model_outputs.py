"""Tasks whose targets are a model's outputs, read as tokens from folders of `specdec eval`.

Training a drafter on its target's outputs is sequence-level distillation (Kim and Rush 2016,
1606.07947). Tokenizing the outputs' texts instead could give other tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from specdec.common.json_values import parsed
from specdec.tasks import pieces
from specdec.tasks.loading import TaskError
from specdec.tasks.registry import check_definition, registered
from specdec.tasks.task import Task, TextTask
from specdec.tasks.vocabularies import LoadedVocabulary, VocabularyDefinition, for_texts

# The width of T5's output layers is a multiple of this. Ids after the vocabulary's are sampled
# rarely: 2 in 1,000 tokens of one model.
PADDED_TO = 128


def predictions_task(
    name: str, folders: Mapping[str, str], vocabulary: VocabularyDefinition
) -> Task:
    """Registers a task over the outputs of a model, or returns it if the same task exists.

    Inputs are those of the model's run, with its prefix. Targets are the output tokens, one example
    per text and sample.

    Args:
      name: the name by which the task is registered.
      folders: split -> the `--output_dir` of a run of `specdec eval`, on any number of hosts.
      vocabulary: the vocabulary of the run, which defines BOS and EOS of inputs.

    Returns:
      The task.

    Raises:
      TaskError: a folder has no predictions or a malformed line, the vocabulary cannot be read or
        lacks output tokens, or another task is called `name`.
    """
    check_definition(name, "folders", folders, "split -> folder of specdec eval", vocabulary)
    folders = dict(folders)

    def task() -> Task:
        loaded = for_texts(vocabulary)
        files = {split: _files(folder) for split, folder in folders.items()}
        sizes = {split: _examine(paths, loaded) for split, paths in files.items()}
        return TextTask(name, functools.partial(_pairs, files), sizes, loaded)

    return registered(name, (predictions_task, folders, vocabulary), task)


def token_counts(folder: str) -> Counter[int]:
    """Returns how often each id occurs in the outputs of a run of `specdec eval`.

    Args:
      folder: the run's `--output_dir`.

    Raises:
      TaskError: the folder has no predictions, or a malformed line.
    """
    counts: Counter[int] = Counter()
    for where, line in _lines(_files(folder)):
        counts.update(_example(where, line)["tokens"])
    return counts


def longest_output(folder: str) -> int:
    """Returns the length of the longest output in a folder of `specdec eval`, in tokens.

    Args:
      folder: the run's `--output_dir`.

    Raises:
      TaskError: the folder has no predictions, or a malformed line.
    """
    lengths = [len(_example(where, line)["tokens"]) for where, line in _lines(_files(folder))]
    if not lengths:
        raise TaskError(f"{folder} has no whole prediction; let specdec eval go on")
    return max(lengths)


def _pairs(
    folders: Mapping[str, list[Path]], split: str, start: int
) -> Iterator[tuple[str, list[int]]]:
    for where, line in itertools.islice(_lines(folders[split]), start, None):
        example = _example(where, line)
        yield example["input"], example["tokens"]


def _files(folder: str) -> list[Path]:
    files = sorted(Path(folder).glob("predictions*.jsonl"))
    if not files:
        raise TaskError(
            f"{folder} has no predictions; give the --output_dir of a run of specdec eval"
        )
    return files


def _examine(files: list[Path], vocabulary: LoadedVocabulary) -> int:
    """Counts the examples in files, and raises TaskError if one is malformed."""
    number, ids = 0, -(-vocabulary.vocab_size // PADDED_TO) * PADDED_TO
    for where, line in _lines(files):
        number += 1
        largest = max(_example(where, line)["tokens"], default=0)
        if largest >= ids:
            raise TaskError(
                f"{where}: token {largest}, but the vocabulary has {vocabulary.vocab_size}; give "
                "the vocabulary of that run"
            )
    if not number:
        raise TaskError(f"{files[0]} is empty; let specdec eval go on")
    return number


def _lines(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Yields ("FILE, line N", line) for each line, except an incomplete last one.

    The files of several hosts are interleaved: host k of n has every n-th text from text k on.
    """
    for turn in itertools.zip_longest(*map(_lines_of, files)):
        yield from (line for line in turn if line is not None)


def _lines_of(file: Path) -> Iterator[tuple[str, bytes]]:
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                yield f"{file}, line {number}", line


class _Prediction(TypedDict):
    input: str
    tokens: list[pieces.Id]


def _example(where: str, line: bytes) -> _Prediction:
    try:
        return parsed(line, _Prediction)
    except ValueError as error:
        raise TaskError(f"{where}: not a prediction, it {error}; run specdec eval again") from error
