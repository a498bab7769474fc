"""A drafter that copies what followed the same tokens in earlier outputs of the target.

He et al. 2023, "REST: Retrieval-Based Speculative Decoding" (2311.08252), with one path instead of
their tree.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import last_tokens
from specdec.types import Array, Draft, Params, PyTree, Request, Table


@dataclasses.dataclass(frozen=True)
class Retrieval(Checked, Drafter):
    """Looks up the output's end in a store of earlier outputs, which `tables.store` makes.

    Each matching place votes for the token after it. The first draft token is the one with most
    votes. Only the places that voted for it vote for the second one, and so on. The store is sorted
    by the reversed text before each place. A binary search therefore finds the places in about 2
    log2(T) steps for T tokens, on the device and inside the loop.

    Args:
      longest: the most tokens of the output's end that are compared.
      shortest: the fewest tokens that must match; otherwise nothing is proposed.
      candidates: the most places that vote. If more have the longest match, a sample evenly spaced
        in the store votes.
    """

    longest: PositiveInt = 8
    shortest: PositiveInt = 1
    candidates: PositiveInt = 64

    def __post_init__(self):
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(
                f"Retrieval.shortest is {self.shortest}, more than longest, {self.longest}; "
                "give less"
            )

    def tables(self) -> dict[str, Table]:
        return {"store": Table("store")}

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        store = params["store"]["tokens"], params["store"]["order"]
        last = last_tokens(context, self.longest)
        proposed = jax.vmap(lambda row: self._continuation(*store, row, request.longest))(last)
        tokens, matches = proposed
        length = jnp.where(matches, want, 0).astype(jnp.int32)
        return Draft(tokens, None, length), state

    def _continuation(
        self, tokens: Array, order: Array, last: Array, width: int
    ) -> tuple[Array, Array]:
        """Returns [width], the tokens with most votes, and whether `shortest` tokens match."""
        longest = jnp.int32(self.longest)
        index_of_last = _first_not_before(tokens, order, last, longest, after=False)
        neighbours = jnp.stack([index_of_last - 1, index_of_last])
        there = (neighbours >= 0) & (neighbours < order.shape[0])
        same = jax.vmap(lambda i: _common(tokens, order[i], last))(
            jnp.clip(neighbours, 0, order.shape[0] - 1)
        )
        depth = jnp.max(jnp.where(there, same, 0))
        low = _first_not_before(tokens, order, last, depth, after=False)
        high = _first_not_before(tokens, order, last, depth, after=True)
        index = jnp.arange(self.candidates)
        places = high - low
        spread = (index * (places / self.candidates)).astype(jnp.int32)
        index = low + jnp.where(places > self.candidates, spread, index)
        votes = index < high
        at = order[jnp.minimum(index, order.shape[0] - 1)][:, None] + jnp.arange(width)[None]
        following = tokens[jnp.minimum(at, tokens.shape[0] - 1)]  # [candidates, width]

        def elect(votes: Array, column: Array) -> tuple[Array, Array]:
            counts = jnp.sum((column[:, None] == column[None]) & votes[None], axis=1)
            chosen = column[jnp.argmax(jnp.where(votes, counts, 0))]
            return votes & (column == chosen), chosen

        _, chosen = jax.lax.scan(elect, votes, following.T)
        return chosen, depth >= self.shortest


def _first_not_before(
    tokens: Array, order: Array, last: Array, depth: Array, *, after: bool
) -> Array:
    """Returns the first place in `order` that does not sort before `last`, or, if `after`, that
    sorts after it. Only the `depth` newest tokens are compared."""

    def halve(_, ends):
        low, high = ends
        middle = (low + high) // 2
        sign = _compared(tokens, order[jnp.minimum(middle, order.shape[0] - 1)], last, depth)
        right = ((sign <= 0) if after else (sign < 0)) & (low < high)
        return jnp.where(right, middle + 1, low), jnp.where(right | (low >= high), high, middle)

    ends = jnp.int32(0), jnp.int32(order.shape[0])
    return jax.lax.fori_loop(0, order.shape[0].bit_length(), halve, ends)[0]


def _before(tokens: Array, position: Array, count: int) -> Array:
    """Returns [count], the tokens before a place, nearest first; -2 before the first token."""
    index = position - 1 - jnp.arange(count)
    return jnp.where(index >= 0, tokens[jnp.maximum(index, 0)], -2)


def _compared(tokens: Array, position: Array, last: Array, depth: Array) -> Array:
    """Returns -1, 0 or 1 if the text before `position` sorts before, equals or follows `last`."""
    sign = jnp.sign(_before(tokens, position, last.shape[0]) - last)
    sign = jnp.where(jnp.arange(last.shape[0]) < depth, sign, 0)
    return sign[jnp.argmax(sign != 0)]


def _common(tokens: Array, position: Array, last: Array) -> Array:
    """Returns the number of tokens before a place, nearest first, that agree with `last`."""
    return jnp.sum(jnp.cumprod(_before(tokens, position, last.shape[0]) == last))
