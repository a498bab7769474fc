"""Reads gin text, or settings in force, without executing it.

The comment after a macro's value is the macro's meaning, and is written nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from specdec.common import resources
from specdec.common.json_values import parsed

# Beginnings of comments that count as settings: of files that a run reads, of the code and of the
# lines that it writes, and of the machine.
FINGERPRINT, VERSION, FORMAT = "# fingerprint of ", "# version of ", "# format of "
MACHINE = "# machine's "
COMPARED = (FINGERPRINT, VERSION, FORMAT, MACHINE)

OFF = ("None", "False", "()", "[]", "{}", "''")  # the values of settings that are off
_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)


class Statement(NamedTuple):
    """A statement `NAME = value  # meaning`; in a block, `name` begins with the block's name."""

    name: str
    value: str
    meaning: str  # '' without a comment

    @property
    def is_macro(self) -> bool:
        return re.fullmatch(r"[A-Z][A-Z0-9_]*", self.name) is not None

    @property
    def field(self) -> str:
        """The part of the name after its last dot."""
        return self.name.rpartition(".")[2]


def statements(text: str) -> Iterator[Statement]:
    """Yields the statements of a text, in order, without those of included files."""
    block = ""
    for line in _logical_lines(text):
        if line[0].start[1] == 0:
            block = ""
        code = [token for token in line if token.type != tokenize.COMMENT]
        comments = [token.string for token in line if token.type == tokenize.COMMENT]
        signs = [token.string for token in code]
        if signs[-1] == ":":
            block = "".join(signs[:-1]) + "."
        elif "=" in signs:
            equals = signs.index("=")
            meaning = comments[-1].lstrip("# ") if comments else ""
            yield Statement(block + "".join(signs[:equals]), _source(code[equals + 1 :]), meaning)


def summary(text: str) -> str:
    """Returns the first sentence of the comment with which a gin text begins."""
    head = re.match(r"(# .+\n)*", f"{text}\n")
    lines = (head[0] if head else "").split("\n")
    words = " ".join(line.removeprefix("# ").strip() for line in lines)
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", words.strip())[0].rstrip(".:")


def comment(text: str, begins: str) -> str | None:
    """Returns the rest of the first line that begins with `begins`; None if there is none."""
    lines = (line.removeprefix(begins) for line in text.splitlines() if line.startswith(begins))
    return next(lines, None)


def settings_in(text: str) -> Mapping[str, object]:
    """Returns name -> value of the settings in gin text or JSON, including those in comments."""
    if not text.startswith("{"):
        return _gin_settings(text)
    plain = parsed(text)
    settings: dict[str, object] = {**_gin_settings(str(plain.pop("gin", "")))}
    for name, value in plain.items():
        settings.update(_dotted(name, value))
    return settings


def first_difference(old: str, new: str) -> tuple[str, object, object] | None:
    """Returns the first setting that differs between two texts: its name and both values.

    A setting that only one text has does not count if it is off or has its default of gin/: the
    other text may come from a version without this setting.
    """
    before, after = settings_in(old), settings_in(new)
    for name in [*after, *before]:
        missing = "1" if name.startswith(FORMAT[2:]) else "not set"  # version 1 wrote none
        values = before.get(name, missing), after.get(name, missing)
        known = name in before and name in after
        if values[0] != values[1] and (known or not _is_default(name, {**before, **after}[name])):
            return name, *values
    return None


def _is_default(name: str, value: object) -> bool:
    if not isinstance(value, str):  # of JSON
        return value is None or value is False
    return value in OFF or _defaults().get(name.rpartition("/")[2]) == value


@functools.cache
def _defaults() -> dict[str, str]:
    """Returns the values that the installed gin files set, by name without scope."""
    folder, values = resources.folder("gin"), {}

    def add(file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        for statement in statements(text):
            values.setdefault(statement.name, statement.value)
        for name in re.findall(r"^include '(.+)'", text, re.MULTILINE):
            add(folder / name)

    for file in (folder / "decode.gin", *sorted(folder.glob("*.gin")), *folder.glob("*/*.gin")):
        add(file)
    return values


def _gin_settings(text: str) -> dict[str, str]:
    settings = {statement.name: statement.value for statement in statements(text)}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and line.startswith(COMPARED):
            settings[name.removeprefix("# ")] = value
    return settings


def _dotted(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the innermost settings of a nested one, with dotted names."""
    inside: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list) and any(isinstance(x, dict) for x in value):
        inside = enumerate(value)
    else:
        yield name, value
    for k, x in inside:
        yield from _dotted(f"{name}.{k}", x)


def _logical_lines(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Yields the tokens of each statement, including those of blocks; gin uses Python's tokens."""
    line: list[tokenize.TokenInfo] = []
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                yield line
                line = []
            elif token.type not in _LAYOUT and (line or token.type != tokenize.COMMENT):
                line.append(token)


def _source(tokens: list[tokenize.TokenInfo]) -> str:
    """Returns the source text of tokens, on one line."""
    text = tokens[0].string if tokens else ""
    for before, token in zip(tokens, tokens[1:], strict=False):
        text += " " * (token.start != before.end) + token.string
    return text
