"""Reads the table of mistakes, mistakes.txt: a command line, `=>`, and what is said of it.

The message is a regular expression: thing, value, remedy. YARD is the folder of `yard.make`, which
must stay as it is, and OUT an empty one. After LATE is a mistake that is seen only when the
parameters have been read, and after `<=` are the bytes on standard input. Rows that begin with a
plus are tried in the default suite, the others in `ci`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

RUN = "--gin_file=YARD/run.gin"
PAIR = ("--target=YARD/target", "--draft=YARD/draft", "--vocabulary=bytes")
SHORT = {
    "RUN": (RUN,),
    "PAIR": PAIR,
    "SAMPLED": ("--gin_file=sampling/temperature.gin",),
    "TRAIN": ("--gin_file=YARD/train.gin",),
}
ROW = re.compile(r"(\+ )?(LATE )?(.*?)  =>  (.*?)(?:  <=  (.*))?")


class Case(NamedTuple):
    """A command line with a mistake in it."""

    argv: tuple[str, ...]
    says: str
    stdin: bytes = b""
    late: bool = False
    first: bool = False


def case(row: str) -> Case:
    """Returns the case of a row."""
    match = ROW.fullmatch(row)
    assert match, row
    first, late, command, says, stdin = match.groups()
    words = shlex.split(command.replace("BYTE", "\udcf6"))
    argv = tuple(arg for word in words for arg in SHORT.get(word, (word,)))
    sent = (stdin or "").encode().decode("unicode_escape").encode("latin-1")
    return Case(argv, says, sent, bool(late), bool(first))


def read() -> dict[str, dict[str, Case]]:
    """Returns the cases by their command lines, for each kind of mistake."""
    kinds: dict[str, dict[str, Case]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = kinds.setdefault(line.removeprefix("# "), {})
        else:
            name = line.removeprefix("+ ").partition("  =>  ")[0]
            kind[name + line.partition("  <=  ")[2]] = case(line)
    return kinds


KINDS = read()
