"""A function for drafters that run a model: it feeds the tokens that the model's cache lacks."""

from __future__ import annotations

import jax.numpy as jnp

from specdec.drafters.matching import slices
from specdec.models.contract import loops
from specdec.models.contract.model import Target
from specdec.types import Array, Cache, PyTree


def catch_up(
    model: Target,
    params: PyTree,
    tokens: Array,
    cache: Cache,
    *,
    until: Array,
    width: int,
    hidden: Array | None = None,
) -> Cache:
    """Fills a cache with the tokens at positions < until, in calls of `width` tokens.

    Tokens are missing if the drafter was not called for some iterations; normally no call is
    needed. Entries from position `until` [B] on are dropped. If the model reads the target's hidden
    states, `hidden` [B, at least 1+N, D] has those of the tokens [B, 1+N].
    """

    def feed(cache: Cache) -> Cache:
        filled = cache.length
        states = {} if hidden is None else {"states": slices(hidden, filled, width)}
        cache = model.decode(params, slices(tokens, filled, width), cache, **states)[1]
        return cache.rewind(jnp.minimum(filled + width, until))

    return loops.while_loop(
        lambda cache: jnp.any(cache.length < until),
        feed,
        cache.rewind(jnp.minimum(cache.length, until)),
    )
