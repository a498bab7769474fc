"""Unigram and bigram tables of the target's own texts."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from specdec.instrument.acceptance.written import Texts
from specdec.sampling import Greedy
from specdec.types import Array


class Tables:
    """The unigram and bigram distributions of texts, smoothed as in Witten and Bell (1991).

      q(x)     = (count(x) + types / V) / (count + types)
      q(x | w) = (count(w x) + types(w) q(x)) / (count(w) + types(w))

    with count tokens in all, types different ones, and count(w), types(w) those that follow w.
    Unseen tokens have a probability too, and there is no constant to choose.

    Attributes:
      unigram: [V] float64
    """

    def __init__(self, texts: Iterable[Sequence[int]], vocab_size: int):
        """Counts the tokens of texts; the first one, the start token, is only a context."""
        following = collections.defaultdict(collections.Counter)
        tokens = collections.Counter()
        for text in texts:
            tokens.update(text[1:])
            for previous, token in itertools.pairwise(text):
                following[previous][token] += 1
        self._following = following
        self.unigram = _witten_bell(tokens, np.full(vocab_size, 1 / vocab_size))

    def bigram(self, previous: int) -> np.ndarray:
        """Returns [V], the distribution after a token."""
        return _witten_bell(self._following[previous], self.unigram)


def _witten_bell(counts: collections.Counter, backoff: np.ndarray) -> np.ndarray:
    if not counts:
        return backoff
    q = len(counts) * backoff
    q[list(counts.keys())] += list(counts.values())
    return q / (counts.total() + len(counts))


def rows(batch: Texts) -> Iterator[list[int]]:
    for row in np.flatnonzero(batch.length):
        yield batch.tokens[row, : 1 + batch.length[row]].tolist()


def proposals(
    halves: Sequence[Tables], batch: Texts, written: int, greedy: bool
) -> dict[str, Array]:
    """Returns name -> [B, T, V] float32 for texts from number `written` on, 0 after their ends."""
    shape = (batch.tokens.shape[0], batch.tokens.shape[1] - 1, halves[0].unigram.size)
    unigram, bigram = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for number, row in enumerate(np.flatnonzero(batch.length), start=written):
        table, size = halves[number % 2], batch.length[row]
        unigram[row, :size] = table.unigram
        bigram[row, :size] = [table.bigram(token) for token in batch.tokens[row, :size].tolist()]
    drawn_from = Greedy().probabilities if greedy else lambda q: q
    tables = {"unigram": unigram, "bigram": bigram}
    return {name: drawn_from(jnp.asarray(q)) for name, q in tables.items()}
