"""Tasks over files that are already here: one example per line, columns separated by TABs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec.lines import text_of_bytes
from specdec.tasks.errors import TaskError
from specdec.tasks.loading import load_seqio
from specdec.tasks.vocabularies import VOCABULARIES, VocabularyDefinition
from specdec.values import Text, Word, check, is_word

if TYPE_CHECKING:
    from seqio import Task

FEATURES = ("inputs", "targets")


def local_task(
    name: str,
    files: Mapping[str, str],
    vocabulary: VocabularyDefinition,
    *,
    prefix: str = "",
    columns: Sequence[str] = FEATURES,
    metric_fns: Sequence[Callable] = (),
) -> Task:
    """Registers a seqio task over local text files, or returns it if this very task exists.

    Args:
      name: the task's name in seqio's registry.
      files: split -> path of a UTF-8 text file; see `specdec.lines` for where its lines end.
      vocabulary: of both features, for instance `SentencePiece(path)` or `Bytes()`.
      prefix: put before every input, such as 'translate English to German: '.
      columns: what the TAB-separated columns of a line are; ('inputs',) takes the whole line as
        an input that has no target.
      metric_fns: seqio metrics, such as `bleu`.

    Both features end in EOS, appended after trimming, as T5 was trained.

    Raises:
      TaskError: a file is missing or empty, a line has the wrong number of columns or is not
        UTF-8, the vocabulary cannot be read, or `name` is another task's.
    """
    _check(name, files, vocabulary, prefix)
    definition = _Definition(
        name, tuple(files.items()), vocabulary, prefix, tuple(columns), tuple(metric_fns)
    )
    if "inputs" not in definition.columns or not set(definition.columns) <= set(FEATURES):
        raise TaskError(
            f"task {name!r}: columns is {columns!r}; give ('inputs', 'targets') or ('inputs',)"
        )
    return _register(definition)


def _check(name: Any, files: Any, vocabulary: Any, prefix: Any) -> None:
    """Raises TaskError for an argument of another kind."""
    check("the task's name", name, Word, TaskError)
    paths = files.values() if isinstance(files, Mapping) else ()
    if not paths or not all(map(is_word, paths)):
        raise TaskError(
            f"files of task {name!r} is {files!r}; give split -> path, as in {{'test': 'test.tsv'}}"
        )
    check(f"prefix of task {name!r}", prefix, Text, TaskError)
    if not hasattr(vocabulary, "load"):
        raise TaskError(f"vocabulary of task {name!r} is {vocabulary!r}; give {VOCABULARIES}")


@dataclasses.dataclass(frozen=True)
class _Definition:
    name: str
    files: tuple[tuple[str, str], ...]
    vocabulary: VocabularyDefinition
    prefix: str
    columns: tuple[str, ...]
    metric_fns: tuple[Callable, ...]


@functools.cache
def _register(definition: _Definition) -> Task:
    sizes = {split: _examine(path, definition.columns) for split, path in definition.files}
    vocabulary = definition.vocabulary.load()
    seqio = load_seqio()
    if definition.name in seqio.TaskRegistry.names():
        raise TaskError(f"task {definition.name!r} exists with another definition; rename this one")
    import tensorflow as tf

    lines = tf.autograph.experimental.do_not_convert(_lines)  # else a warning
    return seqio.TaskRegistry.add(
        definition.name,
        source=seqio.FileDataSource(lines, dict(definition.files), num_input_examples=sizes),
        preprocessors=[
            functools.partial(_parse, columns=definition.columns, prefix=definition.prefix),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={
            name: seqio.Feature(vocabulary, required=name in definition.columns)
            for name in FEATURES
        },
        metric_fns=list(definition.metric_fns),
    )


def _examine(path: str, columns: Sequence[str]) -> int:
    """The number of lines, every one of them well-formed."""
    if os.path.isdir(path):
        raise TaskError(f"data file {path} is a folder; give the file in it")
    if not os.path.isfile(path):
        raise TaskError(f"data file {path} does not exist; check the task's `files`")
    number = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            _examine_line(line, f"{path}, line {number}", columns)
    if not number:
        raise TaskError(f"data file {path} is empty; write one example per line")
    return number


def _examine_line(line: bytes, place: str, columns: Sequence[str]) -> None:
    found = line.count(b"\t") + 1
    if len(columns) > 1 and found != len(columns):
        raise TaskError(
            f"{place}: {found} TAB-separated columns, not {len(columns)} ({', '.join(columns)}); "
            "write one example per line"
        )
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{place}: not UTF-8 ({error.reason}); convert the file") from error


def _lines(file):
    """A dataset of the texts of a file's lines. (TensorFlow's own drops every CR.)"""
    import tensorflow as tf

    def read(path: bytes) -> Iterator[bytes]:
        with open(path, "rb") as stream:
            for number, line in enumerate(stream):
                yield text_of_bytes(line, first=not number)

    line = tf.TensorSpec([], tf.string)
    return tf.data.Dataset.from_generator(read, args=(file,), output_signature=line)


def _parse(dataset, *, columns: Sequence[str], prefix: str):
    """A dataset of lines -> a dataset of {column: text}."""
    import tensorflow as tf

    def parse(line):
        fields = tf.strings.split(line, "\t") if len(columns) > 1 else [line]
        example = {name: fields[i] for i, name in enumerate(columns)}
        return example | {"inputs": tf.strings.join([prefix, example["inputs"]])}

    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
