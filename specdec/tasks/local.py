"""Tasks over files that are already here: one example per line, columns separated by TABs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.registry import FEATURES, add_task, check_definition
from specdec.tasks.vocabularies import VocabularyDefinition

if TYPE_CHECKING:
    from seqio import Task


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
      files: split -> path of a UTF-8 text file; see `line_text` for where its lines end.
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
    check_definition(name, "files", files, "split -> path, as in {'test': 'test.tsv'}", vocabulary)
    if not isinstance(prefix, str):
        raise TaskError(f"prefix of task {name!r} is {prefix!r}; give text, '' for none")
    if "inputs" not in columns or not set(columns) <= set(FEATURES):
        raise TaskError(
            f"task {name!r}: columns is {columns!r}; give ('inputs', 'targets') or ('inputs',)"
        )
    return _register(
        name, tuple(files.items()), vocabulary, prefix, tuple(columns), tuple(metric_fns)
    )


@functools.cache
def _register(
    name: str,
    files: tuple[tuple[str, str], ...],
    definition: VocabularyDefinition,
    prefix: str,
    columns: tuple[str, ...],
    metric_fns: tuple[Callable, ...],
) -> Task:
    sizes = {split: _examine(path, columns) for split, path in files}
    vocabulary = definition.load()
    seqio = load_seqio()
    import tensorflow as tf

    lines = tf.autograph.experimental.do_not_convert(_lines)  # else a warning
    return add_task(
        name,
        seqio.FileDataSource(lines, dict(files), num_input_examples=sizes),
        [functools.partial(_parse, columns=columns, prefix=prefix), seqio.preprocessors.tokenize],
        {side: seqio.Feature(vocabulary, required=side in columns) for side in FEATURES},
        metrics=metric_fns,
    )


def _examine(path: str, columns: Sequence[str]) -> int:
    """Counts the lines, every one of them well-formed."""
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
        without = ", or set TASK_COLUMNS = ('inputs',) for inputs alone" * (found == 1)
        raise TaskError(
            f"{place}: {found} TAB-separated columns, not {len(columns)} ({', '.join(columns)}); "
            f"write one example per line{without}"
        )
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{place}: not UTF-8 ({error.reason}); convert the file") from error


def line_text(line: str, first: bool) -> str:
    """Returns the text of a line of a file, of standard input or of a flag.

    A line ends in LF or in CRLF, which are not part of its text. Any other CR is a space. A
    byte-order mark at the begin of the first line is not part of its text either.
    """
    line = line.removesuffix("\n").removesuffix("\r").replace("\r", " ")
    return line.removeprefix("\ufeff") if first else line


def _lines(file):
    """Reads the texts of a file's lines. (TensorFlow's own dataset drops every CR.)"""
    import tensorflow as tf

    def read(path: bytes) -> Iterator[str]:
        with open(path, encoding="utf-8", newline="\n") as stream:
            for number, line in enumerate(stream):
                yield line_text(line, first=not number)

    line = tf.TensorSpec([], tf.string)
    return tf.data.Dataset.from_generator(read, args=(file,), output_signature=line)


def _parse(dataset, *, columns: Sequence[str], prefix: str):
    """Turns a dataset of lines into one of {column: text}."""
    import tensorflow as tf

    def parse(line):
        fields = tf.strings.split(line, "\t") if len(columns) > 1 else [line]
        example = {name: fields[i] for i, name in enumerate(columns)}
        return example | {"inputs": tf.strings.join([prefix, example["inputs"]])}

    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
