"""Results as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

GREEN, RED, BLUE = "#1a7f37", "#cf222e", "#4f5bd5"  # contrast above 4.5 on white; as in a terminal
_CELL = 'style="text-align:left"'


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Returns an HTML table; its cells are HTML already."""
    lines = [_row("th", header)] if header else []
    lines += [_row("td", row) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag} {_CELL}>{cell}</{tag}>' for cell in cells)}</tr>"


def lines(first: str, rest: Iterable[str]) -> str:
    """Returns HTML of a bold line and of further lines in monospaced type."""
    return f"<b>{html.escape(first)}</b><pre>{html.escape(chr(10).join(rest))}</pre>"


def coloured(text: str, colour: str, struck: bool = False) -> str:
    """Returns a text as HTML in a colour, struck through if `struck`."""
    line = ";text-decoration:line-through" * struck
    return f'<span style="color:{colour}{line}">{html.escape(text)}</span>'


def markdown(text: object) -> str:
    """Returns a text as one line for a Markdown page, without HTML and links of its own.

    Texts and names in results may come from any source. Emphasis keeps its effect.
    """
    return html.escape(" ".join(str(text).splitlines()), quote=False).replace("](", r"]\(")
