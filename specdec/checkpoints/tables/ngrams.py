"""Counts of n-grams, smoothed as in Witten and Bell (1991)."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import numpy as np

ORDERS = 3
SUCCESSORS = 32  # stored for each context; other successors are treated as unseen


def count(
    texts: Iterable[Sequence[int]], vocab_size: int, order: int = ORDERS
) -> dict[str, np.ndarray]:
    """Returns the table of `drafters.NGram`.

    In its formulas, x is a token, w one of R contexts of n - 1 tokens, and `types` counts the
    different tokens that follow it. Of each context, S successors are stored:

      unigram    [V] float32, (count(x) + types / V) / (count + types)
      context_n  [R, n - 1] int32 for n = 2 .. order, the newest token first; rows are sorted
      next_n     [R, S] int32, the successors, the most frequent first; padded with 0
      share_n    [R, S] float32, count(w x) / (count(w) + types(w)); padded with 0
      rest_n     [R] float32, 1 - the sum of shares, the weight of the shorter context

    Args:
      texts: token ids; the first one of each text is the start token, which is only a context.
      vocab_size: V.
      order: the length of the longest n-grams, 1 to 3.

    Raises:
      ValueError: there is no token, or one that is not in the vocabulary.
    """
    following = [collections.defaultdict(collections.Counter) for _ in range(order)]
    for text in texts:
        ids = [int(token) for token in text]
        for at in range(1, len(ids)):
            for n in range(min(order, at + 1)):
                following[n][tuple(reversed(ids[at - n : at]))][ids[at]] += 1
    unigrams = following[0][()]
    if not unigrams or not all(0 <= token < vocab_size for token in unigrams):
        what = "no token" if not unigrams else f"the id {max(unigrams)}"
        raise ValueError(f"the texts have {what}; give texts of a vocabulary of {vocab_size} ids")
    types, total = len(unigrams), unigrams.total()
    unigram = np.full(vocab_size, types / vocab_size)
    unigram[list(unigrams)] += list(unigrams.values())
    table = {"unigram": (unigram / (total + types)).astype(np.float32)}
    for n in range(2, order + 1):
        table |= {f"{name}_{n}": x for name, x in _level(following[n - 1], n - 1).items()}
    return table


def _level(following: dict[tuple[int, ...], collections.Counter], size: int) -> dict:
    """Returns the arrays of the contexts of `size` tokens, by name."""
    contexts = sorted(following)
    width = min(SUCCESSORS, max(map(len, following.values()), default=1))
    rows = max(len(contexts), 1)  # without contexts, one row that matches nothing
    context = np.full([rows, size], np.iinfo(np.int32).max, np.int32)
    next_ = np.zeros([rows, width], np.int32)
    share = np.zeros([rows, width], np.float32)
    for row, words in enumerate(contexts):
        counts = following[words]
        best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:width]
        context[row] = words
        next_[row, : len(best)] = [token for token, _ in best]
        share[row, : len(best)] = [times / (counts.total() + len(counts)) for _, times in best]
    rest = (1 - share.sum(axis=1, dtype=np.float64)).astype(np.float32)
    return {"context": context, "next": next_, "share": share, "rest": rest}
