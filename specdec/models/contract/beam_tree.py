"""Beams in one row of a cache: the slots of their tokens, and those that each token attends to.

A row holds all w beams of a text. Layer t is the w slots from t * w on. They hold the tokens at
position t of the beams that were alive then, in their order. `path[b, t]` says which of the w slots
of layer t the beam b goes through. A step therefore moves no keys and values, and the keys and
values of the inputs exist once.

The nodes of a call follow the committed layers. First come the w pending tokens, which already are
a layer, and then u drafted tokens for each depth:

  slots      0 1   2 3   4 5     6 7 8   9 10 11        w = 2, u = 3
  layer      0     1     pending depth 1 depth 2
  position   0     1     2       3       4
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.models.contract.blocks import View
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class Slots:
    """The arrangement of the beams' tokens in the slots of a cache row."""

    beams: int  # w, the slots of a layer
    width: int  # u, the nodes of each depth of a draft; 0 where nothing is drafted
    capacity: int  # C, the slots of a row

    def positions(self, layers: Array) -> Array:
        """Returns the position of the token in each slot, [B, C] int32, after the committed layers
        [B]."""
        slot = jnp.arange(self.capacity, dtype=jnp.int32)[None]
        of_layer = slot // self.beams
        if not self.width:
            return jnp.broadcast_to(of_layer, (len(layers), self.capacity))
        drafted = slot - (layers[:, None] + 1) * self.beams
        return jnp.where(drafted < 0, of_layer, layers[:, None] + 1 + drafted // self.width)

    def committed(self, path: Array, layers: Array) -> Array:
        """Returns [B, R, C] bool, whether each of R beams attends to each slot of committed layers:
        to the slots of its path [B, R, N] in the layers before `layers` [B, R]."""
        longest = path.shape[2]
        before = jnp.arange(longest)[None, None] < layers[:, :, None]
        seen = path[..., None] == jnp.arange(self.beams)[None, None, None]
        seen = (seen & before[..., None]).reshape(*path.shape[:2], longest * self.beams)
        return jnp.pad(seen, ((0, 0), (0, 0), (0, self.capacity - seen.shape[2])))

    def placed(self, nodes: Array, layers: Array) -> Array:
        """Returns a mask over all slots, [B, R, C] bool, from a mask over the nodes [B, R, T] of a
        call, which lie after the committed layers [B]."""
        width = nodes.shape[2]
        node = jnp.arange(self.capacity)[None] - layers[:, None] * self.beams
        inside = (node >= 0) & (node < width)
        node = jnp.clip(node, 0, width - 1)[:, None]
        return inside[:, None] & jnp.take_along_axis(nodes, node, axis=2)

    def view(self, queries: Array, layers: Array, seen: Array) -> View:
        """Returns the `View` of a block of tokens at the positions `queries` [B, T], which attend
        to the slots where `seen` [B, T, C] is True."""
        return View(queries, self.positions(layers), seen)

    def of_prefix(self, rows: int, tokens: int) -> View:
        """Returns the `View` of a call on a prefix, whose tokens are fed w times each, as layers.

        Every token attends to itself and to the first beam's earlier tokens.
        """
        slot = jnp.arange(tokens * self.beams, dtype=jnp.int32)
        others = jnp.arange(self.capacity, dtype=jnp.int32)
        earlier = others[None] // self.beams < slot[:, None] // self.beams
        seen = (earlier & (others % self.beams == 0)[None]) | (others[None] == slot[:, None])
        queries = jnp.broadcast_to(slot // self.beams, (rows, len(slot)))
        none = jnp.full([rows], tokens, jnp.int32)
        return self.view(queries, none, jnp.broadcast_to(seen, (rows, *seen.shape)))
