"""Texts that a user gives, line by line."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import TextIO

from specdec.common.values import UsageError
from specdec.tasks.local import line_text

STDIN = "standard input"


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
    """Returns the text of a flag; raises UsageError if it has bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode(errors="replace").decode()
        raise UsageError(f"--text {shown} is not UTF-8; convert it, or set LANG=C.UTF-8") from error
    return "\n".join(line_text(line, not i) for i, line in enumerate(text.split("\n")))


def not_nothing(lines: Iterable[str], name: str, purpose: str) -> Iterator[str]:
    """Returns the lines; raises UsageError at once if there is none, and reads no further."""
    lines = iter(lines)
    for first in lines:
        return itertools.chain([first], lines)
    raise UsageError(f"{name} has nothing {purpose}; give one text per line")
