"""Makes docs/reference/gin-names.md of the macros in gin/, as `specdec list macros` prints them.

python scripts/pages/make_gin_names.py
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from specdec.cli import listing

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gin-names.md"
HEAD = """# Gin names

Settings by name, as `specdec list macros` prints them. Set one with `NAME = VALUE` in a gin file,
or with `--gin.NAME=VALUE`. Strings need quotes that reach gin: `--gin.SPLIT="'test'"`. Each setting
has its default and the gin file that reads it.
"""


def page() -> str:
    """Returns the text of docs/reference/gin-names.md."""
    return "\n".join([HEAD, *rows()])


def rows() -> Iterator[str]:
    """Yields a heading and a table for each topic."""
    for topic, macros in groupby(listing.macros(), key=lambda macro: macro.topic):
        yield from (f"## {topic}", "", "| name | meaning |", "|---|---|")
        for macro in macros:
            yield f"| `{macro.name}` | {shown(macro.text)} |"
        yield ""


def shown(text: str) -> str:
    """Returns a macro's text for a cell of a table, with its default and file as code."""
    start = text.rindex(" (required; " if " (required; " in text else " (default ")
    default, _, file = text[start + 2 : -1].rpartition("; ")
    word, _, value = default.partition(" ")
    return f"{text[:start]} ({word}{f' `{value}`' * bool(value)}; `{file}`)"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
