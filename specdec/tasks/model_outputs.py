"""Tasks over what a model wrote: the folders of `specdec eval`, token by token.

A drafter that is trained on its target's own output learns what it is asked for (sequence-level
distillation, Kim and Rush 2016, 1606.07947); texts cut into tokens anew could be other tokens.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.common.values import is_integer
from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.registry import add_task, check_definition
from specdec.tasks.vocabularies import VocabularyDefinition

if TYPE_CHECKING:
    from seqio import Task

# T5's output layers have a multiple of this many ids. At a temperature those that no text has are
# drawn now and then, 2 in 1,000 tokens of one model.
PADDED_TO = 128


def predictions_task(
    name: str, folders: Mapping[str, str], vocabulary: VocabularyDefinition
) -> Task:
    """Registers a seqio task over the outputs of a model, or returns it if this very task exists.

    Args:
      name: the task's name in seqio's registry.
      folders: split -> the `--output_dir` of a run of `specdec eval`, of any number of hosts.
      vocabulary: that of the run.

    Inputs have the prefix that they had there, and end in EOS; targets are the tokens that came
    out, one example per text and sample.

    Raises:
      TaskError: a folder without predictions or with a line that is none, a vocabulary that cannot
        be read or lacks their tokens, or a `name` that is another task's.
    """
    check_definition(name, "folders", folders, "split -> folder of specdec eval", vocabulary)
    return _register(name, tuple(folders.items()), vocabulary)


def token_counts(folder: str) -> Counter[int]:
    """Counts each id in the outputs that a run of `specdec eval` has in its `--output_dir`.

    Raises:
      TaskError: a folder without predictions or with a line that is none.
    """
    counts: Counter[int] = Counter()
    for place, line in _lines(_files(folder)):
        counts.update(_example(place, line)["targets"])
    return counts


def longest_output(folder: str) -> int:
    """Returns the number of tokens of the longest output in a folder of `specdec eval`; see
    `token_counts`."""
    return max(len(_example(place, line)["targets"]) for place, line in _lines(_files(folder)))


@functools.cache
def _register(
    name: str, given: tuple[tuple[str, str], ...], definition: VocabularyDefinition
) -> Task:
    seqio, vocabulary = load_seqio(), definition.load()
    folders = {split: _files(folder) for split, folder in given}
    sizes = {split: _examine(files, vocabulary) for split, files in folders.items()}

    def read(split: str, shuffle_files: bool = False, seed: int | None = None) -> Any:
        import tensorflow as tf

        def lines() -> Iterator[dict[str, Any]]:
            for place, line in _lines(folders[split]):
                yield _example(place, line)

        shapes = {
            "inputs": tf.TensorSpec([], tf.string),
            "targets": tf.TensorSpec([None], tf.int32),
        }
        return tf.data.Dataset.from_generator(lines, output_signature=shapes)

    return add_task(
        name,
        seqio.FunctionDataSource(read, list(folders), num_input_examples=sizes),
        [functools.partial(_tokenize, vocabulary=vocabulary)],
        {"inputs": seqio.Feature(vocabulary), "targets": seqio.Feature(vocabulary, add_eos=False)},
    )


def _tokenize(dataset: Any, *, vocabulary: Any) -> Any:
    """Turns inputs into ids, which targets are."""

    def tokenize(example):
        return example | {"inputs": vocabulary.encode_tf(example["inputs"])}

    return dataset.map(tokenize)


def _files(folder: str) -> list[Path]:
    found = sorted(Path(folder).glob("predictions*.jsonl"))
    if not found:
        raise TaskError(
            f"{folder} has no predictions; give the --output_dir of a run of specdec eval"
        )
    return found


def _examine(files: list[Path], vocabulary: Any) -> int:
    """Counts the examples, every one of them well-formed."""
    number, ids = 0, -(-vocabulary.vocab_size // PADDED_TO) * PADDED_TO
    for place, line in _lines(files):
        number += 1
        largest = max(_example(place, line)["targets"], default=0)
        if largest >= ids:
            raise TaskError(
                f"{place}: token {largest}, but the vocabulary has {vocabulary.vocab_size}; give "
                "the vocabulary of that run"
            )
    if not number:
        raise TaskError(f"{files[0]} is empty; let specdec eval go on")
    return number


def _lines(files: list[Path]) -> Iterator[tuple[str, str]]:
    """Yields where a line is, and the line. A last one without its end is not there yet."""
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.endswith("\n"):
                    yield f"{file}, line {number}", line


def _example(place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        inputs, targets = record["input"], record["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(f"{place}: not a prediction; run specdec eval again") from error
    ids = isinstance(targets, list) and all(is_integer(id, 0) for id in targets)
    if not isinstance(inputs, str) or not ids:
        raise TaskError(f"{place}: not a prediction; run specdec eval again")
    return {"inputs": inputs, "targets": targets}
