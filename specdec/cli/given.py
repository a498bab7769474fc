"""Texts that a user gives: lines of a file or of standard input, and outputs of earlier runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TextIO, TypedDict

from msgspec import Meta

from specdec.cli.shorthands import utf8
from specdec.common.file_names import check_regular
from specdec.common.json_values import parsed
from specdec.common.values import UsageError
from specdec.tasks.local import line_text
from specdec.texts.texts import Data, Previous, TextList, TextStream

STDIN = "standard input"
_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # shells name open pipes so
FLAG = "--input_file"
PREVIOUS = "--previous"


def filled(args: argparse.Namespace, data: Data) -> tuple[Data, Previous | None]:
    """Returns the data with texts of standard input, and the previous outputs or None.

    Standard input is read if `--text=-` says so, or if there is a --target but no text.
    """
    if not vars(args).get("reads_stdin"):
        return data, None
    texts = args.text or ()
    if "-" in texts or (data.task is None and data.texts is None and args.target is not None):
        if args.distributed is not None:
            raise UsageError(
                "--distributed: standard input is that of one host; give --input_file=FILE, which "
                "all hosts can read"
            )
        data = dataclasses.replace(data, texts=TextStream(_lines(texts or ["-"], args)))
    if args.live:
        return data, Previous("--live", None)
    return data, None if args.previous is None else file_outputs(args.previous)


def _lines(texts: Sequence[str], args: argparse.Namespace) -> Iterator[tuple[str, None]]:
    """Yields (text, None) as texts come; '-' stands for the lines of standard input."""
    if sys.stdin.isatty():
        print("one text per line; Ctrl-D ends", file=sys.stderr)
    lines = (lines_of(None, sys.stdin) if text == "-" else [utf8(text)] for text in texts)
    for line in not_nothing(itertools.chain.from_iterable(lines), STDIN, "to decode"):
        yield (args.task_prefix or "") + line, None


def file_outputs(path: str) -> Previous:
    """Reads previous outputs from a file: plain texts, or the JSON lines of `specdec decode`."""
    lines, name = file_lines(PREVIOUS, path, "previous outputs, one a line"), f"{PREVIOUS} {path}"
    if not path.endswith(".jsonl"):
        return Previous(name, lines)
    outputs: dict[int, Sequence[int]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = parsed(line, _Output)
        except ValueError as error:
            raise UsageError(
                f"{name}, line {number} {error}; give the --output_file of `specdec decode`"
            ) from error
        outputs.setdefault(record["index"], record["tokens"])
    return Previous(name, [outputs.get(i, ()) for i in range(max(outputs, default=-1) + 1)])


class _Output(TypedDict):
    index: Annotated[int, Meta(ge=0, lt=2**24)]  # a list of all indexes is made
    tokens: list[Annotated[int, Meta(ge=0, lt=2**31)]]


def given_texts(
    file: str | None = None, texts: Sequence[str] = (), prefix: str = ""
) -> TextList | None:
    """Returns the texts of a file, or else those of `texts`; None if there are none.

    Args:
      file: the path of a file of lines, each `input` or `input TAB reference`.
      texts: input texts, used if `file` is None.
      prefix: text that is put before each input of the file.

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
    """Returns the lines of a file; raises UsageError, with the flag, if it cannot be read."""
    try:
        source = Path(path)
        if not str(path).startswith(_STREAMS):
            check_regular(source)
        with open(source, encoding="utf-8", newline="\n") as file:
            return list(lines_of(flag, file, path))
    except (OSError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise UsageError(
            f"{flag} {path} cannot be read: {reason}; give a file of {content}"
        ) from error


def lines_of(flag: str | None, stream: TextIO, path: str = "-") -> Iterator[str]:
    """Yields the lines of a file that a flag names, or of standard input, as they come."""
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # something was read before
            stream.reconfigure(newline="\n")
    name, lines = STDIN if path == "-" else f"{flag} {path}", iter(stream)
    for number in itertools.count(1):
        try:
            line = next(lines, None)
            if line is None:
                return
            line.encode()  # some locales read other bytes as surrogates
        except UnicodeError as error:
            raise UsageError(
                f"{name}, line {number} or near it, is not UTF-8; convert it"
            ) from error
        yield line_text(line, first=number == 1)


def not_nothing(lines: Iterable[str], name: str, purpose: str) -> Iterator[str]:
    """Reads the first line and returns all lines as an iterator; raises UsageError without any."""
    lines = iter(lines)
    for first in lines:
        return itertools.chain([first], lines)
    raise UsageError(f"{name} has nothing {purpose}; give one text per line")
