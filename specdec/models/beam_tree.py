"""Beams in one row of a cache: where their tokens lie, and what each of them sees.

A row holds all w beams of a text. Layer t is the w slots from t * w on: the tokens at position t of
the beams that were alive then, in their order. `path[b, t]` says which of the w slots of layer t
the beam b goes through. So a step moves no keys and values, and those of the inputs exist once.

Behind the committed layers lie the nodes of a call: the w pending tokens, which are a layer
already, and then, depth by depth, u drafted tokens each:

    slots      0 1   2 3   4 5     6 7 8   9 10 11        w = 2, u = 3
    layer      0     1     pending depth 1 depth 2
    position   0     1     2       3       4
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.models.blocks import View
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class Slots:
    """The arrangement of a row's slots.

    beams: w, the slots of a layer.
    width: u, the nodes of each depth of a draft; 0 where nothing is drafted.
    capacity: C, the slots of a row.
    """

    beams: int
    width: int
    capacity: int

    def positions(self, layers: Array) -> Array:
        """Returns the position of what is in each slot, [B, C] int32, behind committed layers
        [B]."""
        slot = jnp.arange(self.capacity, dtype=jnp.int32)[None]
        of_layer = slot // self.beams
        if not self.width:
            return jnp.broadcast_to(of_layer, (len(layers), self.capacity))
        drafted = slot - (layers[:, None] + 1) * self.beams
        return jnp.where(drafted < 0, of_layer, layers[:, None] + 1 + drafted // self.width)

    def committed(self, path: Array, layers: Array) -> Array:
        """Returns which slots of its past each beam sees, [B, R, C] bool.

        Args:
          path: [B, R, N] int32, see above.
          layers: [B, R] int32: those from this one on are not seen.
        """
        longest = path.shape[2]
        before = jnp.arange(longest)[None, None] < layers[:, :, None]
        seen = path[..., None] == jnp.arange(self.beams)[None, None, None]
        seen = (seen & before[..., None]).reshape(*path.shape[:2], longest * self.beams)
        return jnp.pad(seen, ((0, 0), (0, 0), (0, self.capacity - seen.shape[2])))

    def placed(self, nodes: Array, layers: Array) -> Array:
        """Returns [B, R, T] bool over the nodes of a call as one over all slots, [B, R, C]."""
        width = nodes.shape[2]
        node = jnp.arange(self.capacity)[None] - layers[:, None] * self.beams
        inside = (node >= 0) & (node < width)
        node = jnp.clip(node, 0, width - 1)[:, None]
        return inside[:, None] & jnp.take_along_axis(nodes, node, axis=2)

    def view(self, queries: Array, layers: Array, seen: Array) -> View:
        """Returns the view of a block: positions [B, T] of its tokens, and what each sees."""
        return View(queries, self.positions(layers), seen)

    def of_prefix(self, rows: int, tokens: int) -> View:
        """Returns the view of a prefix, each of whose tokens is fed w times, as a layer. The first
        beam is the one that goes on, and all see its past."""
        slot = jnp.arange(tokens * self.beams, dtype=jnp.int32)
        others = jnp.arange(self.capacity, dtype=jnp.int32)
        earlier = others[None] // self.beams < slot[:, None] // self.beams
        seen = (earlier & (others % self.beams == 0)[None]) | (others[None] == slot[:, None])
        queries = jnp.broadcast_to(slot // self.beams, (rows, len(slot)))
        none = jnp.full([rows], tokens, jnp.int32)
        return self.view(queries, none, jnp.broadcast_to(seen, (rows, *seen.shape)))
