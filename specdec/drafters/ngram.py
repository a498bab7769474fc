"""A drafter that looks up the next token's distribution after the last one or two in a table.

Leviathan et al. 2022, section 4.1: unigrams and bigrams as approximation models of negligible cost.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from specdec.common.values import Checked
from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import Sampler, TokenByToken
from specdec.drafters.matching import last_tokens
from specdec.types import Array, Context, Params, PyTree, Table


@dataclasses.dataclass(frozen=True)
class NGram(Checked, TokenByToken):
    """Drafts with a table of n-gram frequencies, which `tables.count` makes.

    Orders are interpolated as in Witten and Bell (1991), so that an unseen context w falls back on
    the context that is one token shorter. The table has share(w, x) and rest(w):

      q(x | w) = share(w, x) + rest(w) q(x | w without its first token)

    Args:
      order: 1 for unigrams, 2 for bigrams, 3 for trigrams; the table may have higher orders.
      sampling: the rule that tokens are drawn with; `Greedy()` takes the likeliest one.
      role: the role of the table, if a drafter has several.
    """

    order: Literal[1, 2, 3]
    sampling: Sampler
    role: str = "table"

    def tables(self) -> dict[str, Table]:
        return {self.role: Table("ngram")}

    def init(self, params: Params, context: Context) -> PyTree:
        known = max([int(x[-1]) for x in params[self.role] if x.startswith("context_")], default=1)
        if self.order > known:
            raise ValueError(f"the table has n-grams up to {known} and NGram.order is {self.order}")
        return ()

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        """Returns the logits [B, V] of the first token of a draft."""

        def advance(last: Array, tokens: Array) -> tuple[Array, Array]:
            last = jnp.concatenate([tokens[:, None], last], axis=1)[:, : self.order - 1]
            return jnp.log(self._probabilities(params[self.role], last)), last

        last = last_tokens(context, self.order - 1)
        return Steps(jnp.log(self._probabilities(params[self.role], last)), advance, last)

    def _probabilities(self, table: PyTree, last: Array) -> Array:
        """Returns [B, V], the distribution after the newest tokens [B, order - 1], newest first."""
        rows = last.shape[0]
        q = jnp.broadcast_to(table["unigram"], (rows, table["unigram"].shape[0]))
        for n in range(2, self.order + 1):
            row, is_known = _row_of(table[f"context_{n}"], last[:, : n - 1])
            share = jnp.zeros_like(q)
            at = jnp.arange(rows)[:, None], table[f"next_{n}"][row]
            share = share.at[at].add(table[f"share_{n}"][row])
            longer = share + table[f"rest_{n}"][row][:, None] * q
            q = jnp.where(is_known[:, None], longer, q)
        return q


def _row_of(contexts: Array, last: Array) -> tuple[Array, Array]:
    """Returns [B] the row of the sorted `contexts` [R, m] that equals `last`, and if one does."""

    def halve(_, ends):
        low, high = ends  # contexts[:low] < last <= contexts[high:]
        middle = (low + high) // 2
        less = _less(contexts[jnp.minimum(middle, contexts.shape[0] - 1)], last) & (low < high)
        return jnp.where(less, middle + 1, low), jnp.where(less | (low >= high), high, middle)

    ends = jnp.zeros(last.shape[0], jnp.int32), jnp.full(last.shape[0], contexts.shape[0])
    low, _ = jax.lax.fori_loop(0, contexts.shape[0].bit_length(), halve, ends)
    row = jnp.minimum(low, contexts.shape[0] - 1)
    return row, jnp.all(contexts[row] == last, axis=1)


def _less(a: Array, b: Array) -> Array:
    """Returns [B] bool, whether `a` [B, m] comes before `b` [B, m] in dictionary order."""
    less = jnp.zeros(a.shape[0], bool)
    for column in reversed(range(a.shape[1])):
        less = (a[:, column] < b[:, column]) | (a[:, column] == b[:, column]) & less
    return less
