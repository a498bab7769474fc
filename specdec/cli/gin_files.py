"""Gin files as texts: what they say of themselves, and the macros that they set.

The meaning of a macro is the comment behind its value, there and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from specdec.cli import help
from specdec.common import resources


class Macro(NamedTuple):
    """A statement `NAME = value  # meaning`."""

    name: str
    value: str
    meaning: str  # '' without a comment


def macros(path: str | os.PathLike) -> Iterator[Macro]:
    """The macros that a file sets itself, in its order."""
    for line in _logical_lines(path):
        name, equals, *value = line
        in_block = name.start[1] > 0
        if in_block or equals.string != "=" or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name.string):
            continue
        comments = [token.string for token in value if token.type == tokenize.COMMENT]
        meaning = comments[-1].lstrip("# ") if comments else ""
        yield Macro(name.string, _source([t for t in value if t.type != tokenize.COMMENT]), meaning)


def summary(path: str | os.PathLike) -> str:
    """The first sentence of the comment that a file begins with."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    head = re.match(r"(# .+\n)*", "\n".join([*lines, ""]))
    text = " ".join(
        line.removeprefix("# ").strip() for line in (head[0] if head else "").split("\n")
    )
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", text.strip())[0].rstrip(".:")


def names(folders: Iterable[str | os.PathLike], under: str = "") -> list[str]:
    """The gin files in and below some folders, by the names that `--gin_file` knows them by."""
    found = {
        file.relative_to(folder).as_posix()
        for folder in map(Path, folders)
        for file in sorted((folder / under).rglob("*.gin"))
    }
    return sorted(found)


def own_names() -> list[str]:
    """Those of the gin files that ship with the project."""
    return names([resources.folder("gin"), resources.folder("configs")])


def did_you_mean(name: str) -> str:
    """The hint for a file that there is not; the suffix, which all have, makes none near."""
    known = (own.removesuffix(".gin") for own in own_names())
    return help.did_you_mean(name.removesuffix(".gin"), known).replace("?", ".gin?")


def setting(macro: str) -> str | None:
    """The first of our fragments that sets a macro; None if none does."""
    folder = resources.folder("gin")
    files = (name for name in names([folder]) if macro in (m.name for m in macros(folder / name)))
    return next(files, None)


def path(name: str, folders: Iterable[str | os.PathLike] = ()) -> Path:
    """Where a file is that `names` found in the folders, or among our own fragments."""
    candidates = (Path(folder) / name for folder in [*folders, resources.folder("gin")])
    return next(filter(Path.is_file, candidates))


def _logical_lines(path: str | os.PathLike) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each statement, those of blocks included; gin's are Python's.

    They end where gin, which reads the file too, will complain.
    """
    line: list[tokenize.TokenInfo] = []
    broken = (tokenize.TokenError, SyntaxError, UnicodeDecodeError)
    with open(path, encoding="utf-8") as file, contextlib.suppress(*broken):
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NEWLINE:
                if len(line) > 2:
                    yield line
                line = []
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                if line or token.type != tokenize.COMMENT:
                    line.append(token)


def _source(tokens: list[tokenize.TokenInfo]) -> str:
    """The tokens as they were written, on one line."""
    text = tokens[0].string
    for before, token in zip(tokens, tokens[1:], strict=False):
        text += " " * (token.start != before.end) + token.string
    return text
