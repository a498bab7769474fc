"""What mostly followed the same words, as far as it is likely to follow again.

Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications"
(2411.04975): a match that reaches far back is worth a long draft, a short one is not. Their tree of
suffixes holds the text itself and the outputs before it; here it is the source and the output, by
search and with a chain in place of the tree. Outputs before it are what `Retrieval` looks through.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.drafters.matching import check_inputs, last_tokens, matches
from specdec.types import Array, Context, Draft, Params, PyTree, Stop
from specdec.values import is_integer


@dataclasses.dataclass(frozen=True)
class SuffixDecoding:
    """Proposes, token by token, what most of the places go on with that match furthest back.

    longest: how many tokens are compared, at most.
    factor: tokens of a draft for each token that matches, at most.
    least: how probable a draft must be. A token that s of r places go on with, all of which went on
      with the draft so far, has s / r of the draft's probability before it.
    pad_id: what the inputs are filled up with.

    Of tokens with as many places the one behind the last place wins. It runs no model and keeps no
    state, and its drafts are certain (`probs` None): what `least` is compared with decides about
    their length only. With a schedule of `shorter` calls a short draft is a cheap one.
    """

    longest: int = 8
    factor: int = 3
    least: float = 0.5
    pad_id: int = 0

    def __post_init__(self):
        for name in ("longest", "factor"):
            if not is_integer(getattr(self, name), 1):
                raise ValueError(
                    f"SuffixDecoding.{name} is {getattr(self, name)!r}; give a positive integer"
                )
        if not 0 <= self.least <= 1:
            raise ValueError(
                f"SuffixDecoding.least is {self.least!r}; give a probability, 0 for any draft"
            )

    def init(self, params: Params, context: Context) -> PyTree:
        check_inputs(self, context.inputs)
        return ()

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        index = jnp.arange(context.tokens.shape[1])[None]
        written = (index > 0) & (index < context.length[:, None])  # the start token parts both
        before = jnp.concatenate([context.inputs, context.tokens], axis=1)
        counts = jnp.concatenate([context.inputs != self.pad_id, written], axis=1)
        length = matches(before, last_tokens(context, self.longest), counts)
        length = jnp.where(_next(counts), length, 0)
        furthest = jnp.max(length, axis=1, keepdims=True)
        places = (length == furthest) & (furthest > 0)

        def extend(carry, _):
            places, before, counts, probability = carry
            before, counts = _next(before), _next(counts)
            token, chosen = _elected(before, places & counts)
            share = jnp.sum(chosen, axis=1) / jnp.maximum(jnp.sum(places, axis=1), 1)
            probability = probability * share
            return (chosen, before, counts, probability), (token, probability)

        start = places, before, counts, jnp.ones(want.shape)
        _, (tokens, probability) = jax.lax.scan(extend, start, None, keys.shape[1])
        likely = jnp.sum((probability > 0) & (probability >= self.least), axis=0)
        length = jnp.minimum(jnp.minimum(want, likely), self.factor * furthest[:, 0])
        return Draft(tokens.T, None, length.astype(jnp.int32)), state


def _next(values: Array) -> Array:
    """[B, L] of each place what the one behind it has; 0 at the end."""
    return jnp.pad(values[:, 1:], ((0, 0), (0, 1)))


def _elected(tokens: Array, places: Array) -> tuple[Array, Array]:
    """[B] the token [B, L] of most of the places [B, L] bool, and [B, L] those that have it."""
    same = (tokens[:, :, None] == tokens[:, None, :]) & places[:, None, :]
    score = jnp.sum(same, axis=2) * tokens.shape[1] + jnp.arange(tokens.shape[1])[None]
    best = jnp.argmax(jnp.where(places, score, -1), axis=1)[:, None]
    token = jnp.take_along_axis(tokens, best, axis=1)
    return token[:, 0], places & (tokens == token)
