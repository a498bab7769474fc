"""Draft trees: the parent of each draft token, and the tokens that it attends to.

A node is a draft token. Its depth is the number of draft tokens before it in its text. The nodes
follow the pending token, w for each depth. A parent is a node, or -1 for the pending token:

  slot       n        n+1 n+2   n+3 n+4     w = 2, two depths
  holds      pending  0   1     2   3       the nodes by number
  position   n        n+1 n+1   n+2 n+2
  parents             -1  -1    0   1       two paths; in a tree both may follow node 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from specdec.models.contract.blocks import View
from specdec.types import Array, DraftNodes

ROOT = -1  # the parent of the nodes of the first depth: the pending token
UNKNOWN = -2  # a token that no node has


class Nodes(struct.PyTreeNode):
    """The arrangement of a draft's tokens [B, T] as nodes of a tree; a row has no leading B."""

    parents: Array  # [B, T] int32
    valid: Array  # [B, T] bool, whether a node may be accepted; its parent may be then, too
    width: int = struct.field(pytree_node=False)  # w

    @property
    def depths(self) -> Array:
        """The depth of each node, [T] int32; 0 for the children of the pending token."""
        return jnp.arange(self.parents.shape[-1], dtype=jnp.int32) // self.width

    def of_parents(self, values: Array, root: Array) -> Array:
        """Returns the value of each node's parent, [B, T]; `root` [B] is the pending token's."""
        with_root = jnp.concatenate([root[:, None], values], axis=1)
        return jnp.take_along_axis(with_root, self.parents + 1, axis=1)

    def restricted(self, allowed: Array) -> Nodes:
        """Returns the nodes, of which only those stay valid that are `allowed` [B, T] with all
        their ancestors."""
        valid = self.valid & allowed
        root = jnp.ones(len(valid), bool)
        for _ in range(1, self.parents.shape[-1] // self.width):
            valid &= self.of_parents(valid, root)
        return self.replace(valid=valid)

    def lead(self) -> Array:
        """Returns [B, T, T] bool, whether node j is node i or one of its ancestors."""
        rows, total = self.parents.shape
        lead = jnp.broadcast_to(jnp.eye(total, dtype=bool), (rows, total, total))
        for first in range(self.width, total, self.width):
            depth = slice(first, first + self.width)
            before = jnp.take_along_axis(lead, self.parents[:, depth, None], axis=1)
            lead = lead.at[:, depth].set(lead[:, depth] | before)
        return lead

    def ancestors(self) -> Array:
        """Returns [B, 1+T, 1+T] bool, whether token i of a call attends to token j.

        The call feeds the pending token and then the nodes.
        """
        lead = jnp.pad(self.lead(), ((0, 0), (1, 0), (1, 0)))
        return lead.at[:, :, 0].set(True)


def view(lead: Array, depth: Array, start: Array, capacity: int) -> View:
    """Returns the `View` of a call on the w nodes of one depth []. They attend to the text, and to
    the nodes where `lead` [B, w, T] is True; slot `start` [B] has the first node of the draft."""
    rows, width, total = lead.shape
    slots = jnp.arange(capacity, dtype=jnp.int32)[None]
    index = slots - start[:, None]
    keys = jnp.where(index < 0, slots, start[:, None] + index // width)
    inside = (index >= 0) & (index < total)
    of_nodes = jnp.take_along_axis(lead, jnp.clip(index, 0, total - 1)[:, None], axis=2)
    visible = jnp.where(inside[:, None], of_nodes, (index < 0)[:, None])
    queries = jnp.broadcast_to((start + depth)[:, None], (rows, width))
    return View(queries, keys, visible)


class Followed(NamedTuple):
    """A path through one row's nodes."""

    nodes: Array  # [depths] int32
    length: Array  # [] int32, how many of them exist
    kept: Array  # [] int32, how many have the wanted tokens


def follow(nodes: DraftNodes, tokens: Array, wanted: Callable[[int, Array], Array]) -> Followed:
    """Returns the path through the nodes [T] of one row that agrees with a text the longest.

    After the last agreeing node it goes on with first children. `wanted` maps a depth, and the node
    [] before it, to the token [] of the text.
    """
    width = nodes.width
    at, exists, keeps = jnp.int32(ROOT), jnp.bool_(True), jnp.bool_(True)
    path, length, wanted_count = [], jnp.int32(0), jnp.int32(0)
    for depth in range(nodes.parents.shape[-1] // width):
        nodes_here = slice(depth * width, (depth + 1) * width)
        children = nodes.valid[nodes_here] & (nodes.parents[nodes_here] == at)
        matches = children & (tokens[nodes_here] == wanted(depth, at))
        exists &= jnp.any(children)
        keeps &= jnp.any(matches)
        at = depth * width + jnp.argmax(jnp.where(keeps, matches, children)).astype(jnp.int32)
        path.append(at)
        length, wanted_count = length + exists, wanted_count + keeps
    return Followed(jnp.stack(path), length, wanted_count)


def kept_nodes(nodes: Nodes, tokens: Array, text: Array, known: Array) -> Followed:
    """Returns the path in each row's draft tree that agrees with `text` [B, depths]; see `follow`.

    Only the first `known` [B] tokens of a text count.
    """

    def of_row(nodes: Nodes, tokens: Array, text: Array, known: Array) -> Followed:
        def wanted(depth: int, at: Array) -> Array:
            return jnp.where(depth < known, text[depth], UNKNOWN)

        return follow(nodes, tokens, wanted)

    return jax.vmap(of_row)(nodes, tokens, text, known)
