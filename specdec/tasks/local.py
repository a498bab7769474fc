"""Tasks over local files: one example per line, columns separated by TABs."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from specdec.common.file_names import own_file
from specdec.tasks.loading import TaskError
from specdec.tasks.media import part_of, with_files
from specdec.tasks.registry import check_definition, registered
from specdec.tasks.task import FEATURES, Task, TextTask
from specdec.tasks.vocabularies import (
    LoadedVocabulary,
    VocabularyDefinition,
    files_of,
    for_texts,
)

FILES = "files"  # the column of pictures or of sound


def local_task(
    name: str,
    files: Mapping[str, str],
    vocabulary: VocabularyDefinition,
    *,
    prefix: str = "",
    columns: Sequence[str] = FEATURES,
    metric_fns: Sequence[Callable] = (),
) -> Task:
    """Registers a task over local text files, or returns it if the same task exists.

    Targets are trimmed and then end in EOS, as in T5's training. The vocabulary defines whether
    inputs have BOS and EOS.

    Args:
      name: the name by which the task is registered.
      files: split -> path of a UTF-8 text file; see `line_text` for where its lines end.
      vocabulary: of inputs and targets, for instance `SentencePiece(path)` or `Bytes()`.
      prefix: put before every input, such as 'translate English to German: '.
      columns: the features in the TAB-separated columns of a line; ('inputs',) uses the whole line
        as an input without a target. The column 'files' names one picture for each `<image>` of
        the input, with spaces between names, or a sound that is the input. Names are relative to
        the text file's folder, and files are inside it.
      metric_fns: metrics, such as `bleu`.

    Returns:
      The task.

    Raises:
      TaskError: a file is missing, empty or malformed, or names a picture or sound outside its
        folder. The vocabulary cannot be read, or another task is called `name`.
    """
    check_definition(name, "files", files, "split -> path, as in {'test': 'test.tsv'}", vocabulary)
    if not isinstance(prefix, str):
        raise TaskError(f"prefix of task {name!r} is {prefix!r}; give text, '' for none")
    known = {*FEATURES, FILES}
    if not {"inputs", FILES} & set(columns) or not set(columns) <= known:
        raise TaskError(
            f"task {name!r}: columns is {columns!r}; give ('inputs', 'targets') or ('inputs',), or "
            "either with 'files'"
        )
    files, columns, metrics = dict(files), tuple(columns), tuple(metric_fns)

    def task() -> Task:
        loaded = for_texts(vocabulary)
        sizes = {split: _examine(path, columns, loaded) for split, path in files.items()}
        pairs = functools.partial(_pairs, files, columns, prefix)
        return TextTask(name, pairs, sizes, loaded, metrics)

    return registered(name, (local_task, files, vocabulary, prefix, columns, metrics), task)


def _pairs(
    files: Mapping[str, str], columns: Sequence[str], prefix: str, split: str, start: int
) -> Iterator[tuple[str, str | None]]:
    """Yields the (input, target) of a file's lines, from line `start` on."""
    with open(files[split], encoding="utf-8", newline="\n") as stream:
        for number, line in itertools.islice(enumerate(stream), start, None):
            text = line_text(line, first=not number)
            fields = text.split("\t") if len(columns) > 1 else [text]
            example = dict(zip(columns, fields, strict=True))
            source = prefix + example.get("inputs", "")
            if FILES in example:
                source = with_files(source, _names(files[split], example[FILES]))
            yield source, example.get("targets")


def _names(path: str, column: str) -> list[str]:
    """Returns the files that a line of the file `path` names."""
    return [os.path.join(os.path.dirname(path), name) for name in column.split()]


def _examine(path: str, columns: Sequence[str], vocabulary: LoadedVocabulary) -> int:
    """Counts the lines of a file, and raises TaskError if one is malformed."""
    if os.path.isdir(path):
        raise TaskError(f"data file {path} is a folder; give the file in it")
    if not os.path.isfile(path):
        raise TaskError(f"data file {path} does not exist; check the task's `files`")
    number = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            _examine_line(line, path, number, columns, vocabulary)
    if not number:
        raise TaskError(f"data file {path} is empty; write one example per line")
    return number


def _examine_line(
    line: bytes, path: str, number: int, columns: Sequence[str], vocabulary: LoadedVocabulary
) -> None:
    where = f"{path}, line {number}"
    count = line.count(b"\t") + 1
    if len(columns) > 1 and count != len(columns):
        without = ", or set TASK_COLUMNS = ('inputs',) for inputs alone" * (count == 1)
        raise TaskError(
            f"{where}: {count} TAB-separated columns, not {len(columns)} ({', '.join(columns)}); "
            f"write one example per line{without}"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: not UTF-8 ({error.reason}); convert the file") from error
    fields = line_text(text, first=number == 1).split("\t", len(columns) - 1)
    example = dict(zip(columns, fields, strict=True))
    column = example.get(FILES, "")
    for name in [*column.split(), *files_of(vocabulary, example.get("inputs", ""))]:
        own_file(where, name, TaskError, folders=True)
    for name in _names(path, column):
        if not os.path.isfile(part_of(name)[0]):
            raise TaskError(f"{where}: there is no file {name}; check the column 'files'")


def line_text(line: str, first: bool) -> str:
    """Returns the text of a line of a file, of standard input or of a flag.

    A line ends in LF or in CRLF, which are not part of its text. Any other CR becomes a space. A
    byte-order mark at the start of the first line is removed.
    """
    line = line.removesuffix("\n").removesuffix("\r").replace("\r", " ")
    return line.removeprefix("\ufeff") if first else line
