"""A drafter that copies the most frequent continuation of the same tokens while it is likely.

Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications"
(2411.04975): a long match justifies a long draft. Their suffix tree holds the text and earlier
outputs. This drafter searches the source and the output, without a tree, and drafts one path. For
earlier outputs, see `Retrieval`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, Probability
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import check_inputs, last_tokens, matches
from specdec.types import Array, Context, Draft, Params, PyTree, Request


@dataclasses.dataclass(frozen=True)
class SuffixDecoding(Checked, Drafter):
    """Proposes, token by token, the most frequent continuation among the longest matches.

    Among equally frequent tokens, the one after the last match wins. The drafter runs no model and
    keeps no state. Its drafts are certain (`probs` is None): `least` only limits their length. A
    schedule with `shorter` buckets verifies short drafts in cheaper calls.

    Args:
      longest: the most tokens of the output's end that are compared.
      factor: the most draft tokens for each token that matches.
      least: the smallest estimated probability of a draft. If r matches agree with the draft so far
        and s of them continue with a token, that token multiplies the estimate by s / r.
    """

    longest: PositiveInt = 8
    factor: PositiveInt = 3
    least: Probability = 0.5

    def init(self, params: Params, context: Context) -> PyTree:
        check_inputs(self, context)
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        text = context.history
        index = jnp.arange(text.tokens.shape[1])[None]
        if text.begin is not None:  # prompt and output are one text
            before, counts = text.tokens, index < text.length[:, None]
        else:
            written = (index > 0) & (index < context.length[:, None])  # without the start token
            before = jnp.concatenate([context.inputs, context.tokens], axis=1)
            counts = jnp.concatenate([context.inputs != context.pad_id, written], axis=1)
        length = matches(before, last_tokens(context, self.longest), counts)
        length = jnp.where(_behind(counts, -1), length, 0)  # something follows
        furthest = jnp.max(length, axis=1, keepdims=True)
        places = (length == furthest) & (furthest > 0)
        ballot = _Ballot.of(before)

        def extend(carry, _):
            places, probability = carry
            token, chosen = ballot.elected(_behind(places, 1) & counts)
            share = jnp.sum(chosen, axis=1) / jnp.maximum(jnp.sum(places, axis=1), 1)
            probability = probability * share
            return (chosen, probability), (token, probability)

        start = places, jnp.ones(want.shape)
        _, (tokens, probability) = jax.lax.scan(extend, start, None, request.longest)
        likely = jnp.sum((probability > 0) & (probability >= self.least), axis=0)
        length = jnp.minimum(jnp.minimum(want, likely), self.factor * furthest[:, 0])
        return Draft(tokens.T, None, length.astype(jnp.int32)), state


def _behind(values: Array, by: int) -> Array:
    """Returns `values` [B, L] moved `by` places to the right, with False where none is moved."""
    width = values.shape[1]
    moved = jnp.pad(values, ((0, 0), (max(by, 0), max(-by, 0))))
    return moved[:, max(-by, 0) :][:, :width]


class _Ballot(NamedTuple):
    """The searched tokens [B, L], sorted once so that an election takes time linear in L."""

    tokens: Array  # [B, L]
    order: Array  # [B, L] the places, sorted by their tokens
    first: Array  # [B, L] for each entry of `order`, the first entry with the same token
    last: Array  # [B, L] the last one

    @classmethod
    def of(cls, tokens: Array) -> _Ballot:
        index = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        order = jnp.argsort(tokens, axis=1)
        by_token = jnp.take_along_axis(tokens, order, axis=1)
        changes = by_token[:, 1:] != by_token[:, :-1]
        begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
        ends = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
        first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
        last = jax.lax.cummin(jnp.where(ends, index, tokens.shape[1]), axis=1, reverse=True)
        return cls(tokens, order, first, last)

    def elected(self, places: Array) -> tuple[Array, Array]:
        """Returns the most frequent token [B] at the places [B, L] bool, and its places [B, L]."""
        votes = jnp.take_along_axis(places, self.order, axis=1).astype(jnp.int32)
        until = jnp.cumsum(votes, axis=1)
        count = jnp.take_along_axis(until, self.last, axis=1)
        count -= jnp.take_along_axis(until - votes, self.first, axis=1)
        score = jnp.where(votes > 0, count * places.shape[1] + self.order, -1)
        best = jnp.argmax(score, axis=1)[:, None]
        position = jnp.take_along_axis(self.order, best, axis=1)
        token = jnp.take_along_axis(self.tokens, position, axis=1)
        return token[:, 0], places & (self.tokens == token)
