"""Stores texts, with an index of their positions sorted by the tokens before each position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

DEPTH = 64  # tokens by which positions are sorted; only copies of a text have more in common


def store(texts: Iterable[Sequence[int]]) -> dict[str, np.ndarray]:
    """Returns the table of `drafters.Retrieval`.

      tokens  [T] int32, the texts one after the other
      order   [P] int32, positions in `tokens` other than a text's first, sorted by the tokens
              before them, the nearest token first

    Args:
      texts: token ids, the start token first and the stop id last.

    Raises:
      ValueError: there is no text.
    """
    rows = [np.asarray(text, np.int32) for text in texts if len(text) > 1]
    if not rows:
        raise ValueError("there is no text to store; give some")
    tokens = np.concatenate(rows)
    firsts = np.cumsum([0, *map(len, rows[:-1])])
    rank = _ranks(tokens[::-1])[::-1]  # of each token, with those before it
    places = np.setdiff1d(np.arange(1, len(tokens)), firsts)
    order = places[np.argsort(rank[places - 1], kind="stable")]
    return {"tokens": tokens, "order": order.astype(np.int32)}


def _ranks(tokens: np.ndarray) -> np.ndarray:
    """Returns [T], the rank of each position by its token and the `DEPTH - 1` tokens after it.

    Positions are sorted by one token, by two, by four and so on (Manber and Myers 1990).
    """
    _, rank = np.unique(tokens, return_inverse=True)
    size = 1
    while size < DEPTH and size < len(tokens):
        behind = np.full(len(rank), -1, np.int64)
        behind[:-size] = rank[size:]
        _, rank = np.unique(rank.astype(np.int64) * (len(rank) + 1) + behind, return_inverse=True)
        size *= 2
    return rank
