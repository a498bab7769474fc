"""Texts that a user gives, line by line."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from specdec.common.values import UsageError
from specdec.instrument.texts import TextList
from specdec.tasks.local import line_text

STDIN = "standard input"
FLAG = "--input_file"


def given_texts(file: Any = None, texts: Any = (), prefix: Any = "") -> TextList | None:
    """Returns the texts of a file, or the given texts; None without either.

    Args:
      file: the path of a file.
      texts: texts.
      prefix: put before the inputs of a file.

    Raises:
      UsageError: a file cannot be read, is empty, or has references on some lines only.
    """
    words = [*texts, prefix] if isinstance(texts, list | tuple) else [None]
    if not all(isinstance(word, str) for word in words):
        raise UsageError(
            f"INPUT_TEXTS is {texts!r} and TASK_PREFIX {prefix!r}; give texts, as in ('a text',)"
        )
    if file is None:
        return TextList((text, None) for text in texts) if texts else None
    name = f"{FLAG} {file}"
    lines = list(not_nothing(file_lines(FLAG, file, "one text per line"), name, "in it"))
    first = lines[0].count("\t")
    pairs = []
    for number, line in enumerate(lines, start=1):
        text, *references = line.split("\t")
        if len(references) > 1 or len(references) != first:
            raise UsageError(
                f"{name}, line {number} has {len(references)} TABs and the first line {first}; "
                "give inputs alone, or input TAB reference on each line"
            )
        pairs.append((prefix + text, references[0] if references else None))
    return TextList(pairs)


def file_lines(flag: str, path: str, content: str) -> list[str]:
    """Returns the lines of a file; raises UsageError if it cannot be read.

    Args:
      flag: the flag that names the file.
      path: its path.
      content: describes the file to give instead.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return list(lines_of(flag, file, path))
    except (OSError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise UsageError(
            f"{flag} {path} cannot be read: {reason}; give a file of {content}"
        ) from error


def lines_of(flag: str | None, stream: TextIO, path: str = "-") -> Iterator[str]:
    """Yields the lines of a file that a flag names, or of standard input, as they come.

    stream: a file is opened with newline="\n".

    Raises:
      UsageError: at a line that is not UTF-8.
    """
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # something was read before
            stream.reconfigure(newline="\n")
    name, lines = STDIN if path == "-" else f"{flag} {path}", iter(stream)
    for number in itertools.count(1):
        try:
            line = next(lines, None)
            if line is None:
                return
            line.encode()  # where the locale has no words for other bytes they come as surrogates
        except UnicodeError as error:
            raise UsageError(
                f"{name}, line {number} or near it, is not UTF-8; convert it"
            ) from error
        yield line_text(line, first=number == 1)


def utf8(text: str) -> str:
    """Returns the text of a flag; raises UsageError if it has bytes that are not text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode(errors="replace").decode()
        raise UsageError(f"--text {shown} is not UTF-8; convert it, or set LANG=C.UTF-8") from error
    return "\n".join(line_text(line, not i) for i, line in enumerate(text.split("\n")))


def not_nothing(lines: Iterable[str], name: str, purpose: str) -> Iterator[str]:
    """Returns the lines; raises UsageError immediately if there is none, and reads no further."""
    lines = iter(lines)
    for first in lines:
        return itertools.chain([first], lines)
    raise UsageError(f"{name} has nothing {purpose}; give one text per line")
