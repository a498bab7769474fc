"""What the messages of `specdec/` tell a user to type, collected from its source."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[2] / "specdec"
HOLE = "…"  # in the place of a value that a message fills in
# A flag, a setting of gin, a gin file, a command, or a package.
NAMED = re.compile(
    r"(?P<gin>--gin\.[\w.]*\w)"
    r"|(?P<flag>(?<![\w-])--[a-z][a-z_]*)"
    r"|(?P<file>\b[\w/]+\.gin\b)"
    r"|(?P<command>\bspecdec (?=[a-z]+\b)(?P<verb>[a-z]+))"
    r"|(?P<package>pip install (?P<packages>[^;,)`]+))"
    r"|(?P<macro>\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b)"
)


class Remedy(NamedTuple):
    """A message that tells what to type."""

    place: str  # file:line
    message: str

    def named(self, kind: str) -> list[str]:
        return [x for one in NAMED.finditer(self.message) if (x := one[kind])]


def messages() -> Iterator[tuple[str, str]]:
    """Yields place and text of all strings of the package but docstrings, and of its table."""
    table = tomllib.loads((PACKAGE / "cli" / "commands.toml").read_text(encoding="utf-8"))
    yield from _texts("cli/commands.toml", table)
    for file in sorted(PACKAGE.rglob("*.py")):
        tree, skipped = ast.parse(file.read_text(encoding="utf-8")), set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            first = body[0] if isinstance(body, list) and body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                skipped.add(first.value)
            if isinstance(node, ast.JoinedStr):
                skipped |= {x for part in node.values for x in ast.walk(part)}
        for node in ast.walk(tree):
            if node not in skipped and (text := _text(node)):
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}", text


def _texts(place: str, value: object) -> Iterator[tuple[str, str]]:
    """Yields place and text of each text inside tables."""
    if isinstance(value, str):
        yield place, re.sub(r"{[A-Z_]+}", HOLE, value)
    for name, inside in value.items() if isinstance(value, dict) else ():
        yield from _texts(f"{place}:{name}", inside)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or HOLE for part in node.values)
    return ""


def remedies() -> list[Remedy]:
    """Returns the messages that name something to type: those with several words."""
    found = [Remedy(*one) for one in messages() if len(one[1].split()) > 2]
    return [one for one in found if NAMED.search(one.message)]
