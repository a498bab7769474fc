"""A function that drafters share which run a model on the text."""

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

    A drafter that was not called for some iterations loses nothing. Normally no call is needed.
    Entries beyond `until` [B] are forgotten. `hidden` [B, at least 1+N, D] has the target's state
    of each of the tokens [B, 1+N], if the model reads them.
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
