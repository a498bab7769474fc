"""Suggestions for a misspelt word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' with the nearest of the known words, '' if none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
