"""Defines which slots of a cache, and which tokens of the same block, each token attends to.

A block normally is text: each token attends to all slots up to its own. With `ancestors` it may be
any other arrangement. A token's position and its slot then differ:

  tokens      a  b  c  d       b and c follow a, and d follows c
  ancestors   1  0  0  0
              1  1  0  0
              1  0  1  0
              1  0  1  1
  position    n  n+1  n+1  n+2     the length n plus the number of the token's ancestors
  slot        n  n+1  n+2  n+3     the length n plus the token's index in the block

A `View` describes any other arrangement of slots, such as that of beams in `beam_tree`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specdec.types import Array


class View(NamedTuple):
    """The slots of a cache [C] that each token of a block [B, T] attends to."""

    queries: Array  # [B, T] int32, the tokens' positions
    keys: Array  # [B or 1, C] int32, the positions of the tokens in the slots
    visible: Array  # [B, T, C] bool, whether a token attends to a slot


def filled_up(ancestors: Array | View | None, more: int) -> Array | View | None:
    """Returns the arrangement of a block with `more` tokens after it that no token attends to."""
    if ancestors is None:
        return None
    if isinstance(ancestors, View):
        queries, visible = (
            jnp.pad(x, [(0, 0), (0, more), *((0, 0) for _ in x.shape[2:])], mode="edge")
            for x in (ancestors.queries, ancestors.visible)
        )
        return ancestors._replace(queries=queries, visible=visible)
    width = ancestors.shape[-1]
    ends = [(0, 0)] * (ancestors.ndim - 2) + [(0, more)] * 2
    itself = jnp.arange(width + more) >= width
    return jnp.pad(ancestors, ends) | jnp.diag(itself)[(None,) * (ancestors.ndim - 2)]


def widened(view: View, slots: int) -> View:
    """Returns a `View` of the first slots extended to `slots`; no token attends to added slots."""
    more = slots - view.visible.shape[2]
    keys, visible = (
        jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) for x in (view.keys, view.visible)
    )
    return view._replace(keys=keys, visible=visible)


def view(length: Array, capacity: int, width: int, ancestors: Array | View | None = None) -> View:
    """Returns the `View` of a block of T = `width` tokens, written from slot `length` [B] on.

    `ancestors` [T, T] or [B, T, T] bool says whether token i attends to token j of the block; None
    is for text. Each token attends to itself and to all of the cache before the block. A `View` is
    returned unchanged.
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
    index = slots - length[:, None]
    inside = (index >= 0) & (index < width)
    index = jnp.clip(index, 0, width - 1)
    keys = jnp.where(inside, jnp.take_along_axis(queries, index, axis=1), slots)
    of_block = jnp.take_along_axis(ancestors, index[:, None], axis=2)
    before_block = (slots < length[:, None])[:, None]
    return View(queries, keys, jnp.where(inside[:, None], of_block, before_block))
