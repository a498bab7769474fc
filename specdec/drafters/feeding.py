"""What drafters that run a model on the text share."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specdec.drafters.matching import slices
from specdec.models.model import Target
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
    """Fills a cache with tokens [B, 1+N] at the positions < until [B], in calls of `width` tokens.

    Nothing is lost by a drafter that was not asked for some iterations. Normally this takes no
    call; what is beyond `until` is forgotten.

    hidden: [B, at least 1+N, D], the state of each token, for a model that reads such.
    """

    def feed(cache: Cache) -> Cache:
        filled = cache.length
        states = {} if hidden is None else {"states": slices(hidden, filled, width)}
        cache = model.decode(params, slices(tokens, filled, width), cache, **states)[1]
        return cache.rewind(jnp.minimum(filled + width, until))

    return jax.lax.while_loop(
        lambda cache: jnp.any(cache.length < until),
        feed,
        cache.rewind(jnp.minimum(cache.length, until)),
    )
