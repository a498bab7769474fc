"""Results as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

GREEN, RED, BLUE = "#1a7f37", "#cf222e", "#4f5bd5"  # contrast above 4.5 on white; as in a terminal
_CELL = 'style="text-align:left"'


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Returns a table of cells, which are HTML."""
    lines = [_row("th", header)] if header else []
    lines += [_row("td", row) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag} {_CELL}>{cell}</{tag}>' for cell in cells)}</tr>"


def lines(first: str, rest: Iterable[str]) -> str:
    """Returns a bold line, and others in monospaced type."""
    return f"<b>{html.escape(first)}</b><pre>{html.escape(chr(10).join(rest))}</pre>"


def coloured(text: str, colour: str, struck: bool = False) -> str:
    """Returns a text in a colour."""
    line = ";text-decoration:line-through" * struck
    return f'<span style="color:{colour}{line}">{html.escape(text)}</span>'


def markdown(text: object) -> str:
    """Returns a text for a page in Markdown, on one line, without HTML and links of its own.

    Texts and names in results may come from anywhere. Emphasis stays.
    """
    return html.escape(" ".join(str(text).splitlines()), quote=False).replace("](", r"]\(")
