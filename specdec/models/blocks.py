"""What the tokens of a block see of a cache, and of one another.

A block normally is text: each token sees all slots up to its own. With `ancestors` it is anything
else, and then a token's position and its slot are two things:

    tokens      a  b  c  d       c does not see b: both follow a, and d follows c
    ancestors   1  0  0  0
                1  1  0  0
                1  0  1  0
                1  0  1  1
    position    n  n+1  n+1  n+2     the length n, and how many before it in the block it sees
    slot        n  n+1  n+2  n+3     the length n, and its place in the block

A `View` says the same of any arrangement of slots: `models.beam_tree` has that of beams.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specdec.types import Array


class View(NamedTuple):
    """Of each token of a block [B, T] over the slots of a cache [C]."""

    queries: Array  # [B, T] int32, the tokens' positions
    keys: Array  # [B or 1, C] int32, the positions of what is in the slots
    visible: Array  # [B, T, C] bool


def view(length: Array, capacity: int, width: int, ancestors: Array | View | None = None) -> View:
    """What a block of `width` tokens sees that is written from slot `length` [B] on.

    ancestors: [T, T] or [B, T, T] bool: whether the i-th token sees the j-th one of the block. Each
      sees itself, and all that is in the cache already. None for text. A `View` is returned as it
      is.
    """
    if isinstance(ancestors, View):
        return ancestors
    slots = jnp.arange(capacity)[None]
    if ancestors is None:
        queries = length[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
        return View(queries, slots, slots[:, None] <= queries[:, :, None])
    ancestors = jnp.broadcast_to(ancestors, (len(length), width, width))
    before = jnp.tri(width, k=-1, dtype=bool)[None]
    depths = jnp.sum(ancestors & before, axis=2, dtype=jnp.int32)
    queries = length[:, None] + depths
    place = slots - length[:, None]
    inside = (place >= 0) & (place < width)
    place = jnp.clip(place, 0, width - 1)
    keys = jnp.where(inside, jnp.take_along_axis(queries, place, axis=1), slots)
    of_block = jnp.take_along_axis(ancestors, place[:, None], axis=2)
    before_block = (slots < length[:, None])[:, None]
    return View(queries, keys, jnp.where(inside[:, None], of_block, before_block))
