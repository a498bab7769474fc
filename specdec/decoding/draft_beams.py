"""A smaller model's own beam search, which proposes the nodes of a tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from specdec.common.values import Checked, PositiveInt
from specdec.models.contract.beam_tree import Slots
from specdec.models.contract.blocks import View
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target, check_model, decode_block
from specdec.models.contract.views import read_by
from specdec.sampling import fit_vocabulary
from specdec.types import Array, Cache, Params, Part, PyTree


class Layer(struct.PyTreeNode):
    """The w tokens at one output position, in the order of their cache slots, and paths to them."""

    tokens: Array  # [B, w] int32
    path: Array  # [B, w, N] int32, see `models.contract.beam_tree`


class Tree(struct.PyTreeNode):
    """The nodes of a target call: w pending tokens, then u drafted tokens for each draft step."""

    tokens: Array  # [B, T] int32
    parents: Array  # [B, T] int32, the node before each; -1 for a pending token
    roots: Array  # [B, T] int32, the pending token that each follows from
    depths: Array  # [B, T] int32, the draft step of each; 0 for a pending token
    ancestors: Array  # [B, T, T] bool, which nodes lead to each, itself too


class Scored(struct.PyTreeNode):
    """The tree of the last call, with the target's log-probabilities."""

    tree: Tree
    log_probs: Array  # [B, T, V] float32, of the token after each node
    pending: Array  # [B, w] int32, the node that each pending token was; -1 for none


class Continued(struct.PyTreeNode):
    """The live beams from which a draft starts."""

    pending: Layer
    previous: Layer  # the tokens before the pending ones, if there are any
    layers: Array  # [B] int32, the position of the pending tokens
    scores: Array  # [B, w] float32, of the pending beams
    last: Scored | None  # None: the draft uses only its own scores


def rooted(tokens: Array, total: int) -> Tree:
    """Returns a tree of `total` nodes of which only the pending tokens [B, w] are set."""
    rows, width = tokens.shape
    room = ((0, 0), (0, total - width))
    roots = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    return Tree(
        tokens=jnp.pad(tokens, room),
        parents=jnp.full([rows, total], -1, jnp.int32),
        roots=jnp.pad(roots, room),
        depths=jnp.zeros([rows, total], jnp.int32),
        ancestors=jnp.broadcast_to(jnp.eye(total, dtype=bool), (rows, total, total)),
    )


@dataclasses.dataclass(frozen=True)
class DraftBeams(Checked):
    """Drafts by a beam search from the target's beams; every beam on the way is proposed.

    It never spends a node on a stop id, since nothing follows a finished text. If the target scored
    a node in the last call, the draft uses those scores instead of its own (`reuse`). This changes
    which nodes are proposed, and so the steps per call. It never changes a beam.
    """

    model: Target  # its `decode` takes a `View`
    width: PositiveInt  # u, the beams of the draft, at least as many as are searched for
    depth: PositiveInt  # gamma, the steps that the draft looks ahead
    view: Callable[[PyTree], PyTree] | None = None  # the inputs that it reads, if not the target's
    reuse: bool = True
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.model is not None:  # the command line has its own error for a missing model
            check_model("DraftBeams.model", self.model)

    @property
    def nodes(self) -> int:
        """The number of drafted nodes in a tree."""
        return self.width * self.depth

    def models(self) -> dict[str, Target]:
        """Returns role -> model."""
        return {self.role: self.model}

    def views(self) -> dict[str, Callable[[PyTree], PyTree]]:
        """Returns role -> function that makes the model's inputs; {} if it reads the target's
        inputs."""
        return {self.role: read_by(self.model, self.view)} if self.view else {}

    def parts(self, beams: int) -> tuple[Part, ...]:
        """Returns the model calls of a draft. The first one also feeds the previous tokens."""
        return Part(self.role, 2 * beams, 1), Part(self.role, self.width, self.depth - 1)

    def init(self, params: Params, inputs: PyTree, cache: Cache) -> Cache:
        """Reads the inputs, and returns the model's cache."""
        if self.view:
            inputs = read_by(self.model, self.view)(inputs)
        return read(self.model, params[self.role], inputs, cache.capacity, cache)

    def grow(
        self,
        params: Params,
        text: Continued,
        cache: Cache,
        slots: Slots,
        size: int,
        stop_ids: tuple[int, ...],
    ) -> tuple[Tree, Cache]:
        """Returns the tree of the next call, and the cache, which lacks the last step's nodes."""
        beams, weights = slots.beams, params[self.role]
        tree = rooted(text.pending.tokens, beams + self.nodes)
        log_probs, cache = self._first(weights, text, cache, slots, size)
        known = None if text.last is None else text.last.pending
        scores, first = text.scores, 0
        for depth in range(1, self.depth + 1):
            log_probs = _told(log_probs, known, text.last)
            log_probs = log_probs.at[:, :, jnp.array(stop_ids, int)].set(-jnp.inf)
            scores, parents, ids = _best(log_probs, scores, self.width)
            start = beams + (depth - 1) * self.width
            tree = _grown(tree, start, first + parents, ids, depth)
            if known is not None:
                known = _found(jnp.take_along_axis(known, parents, axis=1), ids, text.last)
            if depth < self.depth:
                log_probs, cache = self._feed(weights, tree, start, text, cache, slots, size)
            first = start
        return tree, cache

    def keep(self, cache: Cache, start: Array, nodes: Array) -> Cache:
        """Returns the cache with the chosen drafted `nodes` [B, K] moved to the slots from `start`
        on."""
        return cache.keep(start, nodes, self.nodes)

    def _first(
        self, weights: PyTree, text: Continued, cache: Cache, slots: Slots, size: int
    ) -> tuple[Array, Cache]:
        """Feeds the previous and the pending tokens; returns log-probabilities [B, w, V].

        They are those after the pending tokens. The previous tokens are fed again, because they may
        come from a draft's last step, which is not fed. Without previous tokens the pending ones
        come first, and the slots after them are overwritten later.
        """
        beams, layers = slots.beams, text.layers
        there = (layers > 0)[:, None]
        tokens = jnp.concatenate(
            [jnp.where(there, text.previous.tokens, text.pending.tokens), text.pending.tokens],
            axis=1,
        )
        start = jnp.maximum(layers - 1, 0) * beams
        slot = start[:, None] + jnp.arange(2 * beams, dtype=jnp.int32)[None]
        path = jnp.concatenate([text.previous.path, text.pending.path], axis=1)
        limit = jnp.repeat(jnp.stack([layers - 1, layers], axis=1), beams, axis=1)
        seen = slots.committed(path, limit)
        seen |= jnp.arange(slots.capacity)[None, None] == slot[:, :, None]
        view = slots.view(slot // beams, layers, seen)
        at = cache.rewind(start)
        output, cache = decode_block(self.model, weights, tokens, at, ancestors=view)
        logits = jnp.where(there[..., None], output.logits[:, beams:], output.logits[:, :beams])
        return usable(logits, size), cache

    def _feed(
        self,
        weights: PyTree,
        tree: Tree,
        start: int,
        text: Continued,
        cache: Cache,
        slots: Slots,
        size: int,
    ) -> tuple[Array, Cache]:
        """Feeds the u nodes of one step, from `start` on; returns log-probabilities [B, u, V]."""
        nodes = slice(start, start + self.width)
        view = view_of(tree, nodes, text.pending.path, text.layers, slots)
        at = cache.rewind(text.layers * slots.beams + start)
        output, cache = decode_block(self.model, weights, tree.tokens[:, nodes], at, ancestors=view)
        return usable(output.logits, size), cache


def view_of(tree: Tree, nodes: slice, path: Array, layers: Array, slots: Slots) -> View:
    """Returns the positions of some nodes of a tree, and the cache slots that they attend to.

    `path` [B, w, N] has the committed tokens that lead to each pending token. `layers` [B] is the
    position of the pending tokens.
    """
    roots = tree.roots[:, nodes]
    path = jnp.take_along_axis(path, roots[:, :, None], axis=1)
    seen = slots.committed(path, jnp.broadcast_to(layers[:, None], roots.shape))
    seen |= slots.placed(tree.ancestors[:, nodes], layers)
    return slots.view(layers[:, None] + tree.depths[:, nodes], layers, seen)


def usable(logits: Array, size: int) -> Array:
    """Returns log-probabilities of the target's ids, in which NaN and infinity become -inf."""
    log_probs = jax.nn.log_softmax(fit_vocabulary(logits, size), axis=-1)
    return jnp.where(jnp.isfinite(log_probs), log_probs, -jnp.inf)


def _best(log_probs: Array, scores: Array, width: int) -> tuple[Array, Array, Array]:
    """Returns the scores, parents and ids of the `width` best continuations, [B, u] each."""
    rows, before, size = log_probs.shape
    flat = (log_probs + scores[:, :, None]).reshape(rows, -1)
    short = max(width - flat.shape[1], 0)
    flat = jnp.pad(flat, ((0, 0), (0, short)), constant_values=-jnp.inf)
    scores, index = jax.lax.top_k(flat, width)
    index = jnp.minimum(index, before * size - 1)
    return scores, (index // size).astype(jnp.int32), (index % size).astype(jnp.int32)


def _grown(tree: Tree, start: int, parents: Array, ids: Array, depth: int) -> Tree:
    """Returns the tree with the nodes [B, u] of one draft step, from `start` on."""
    nodes = slice(start, start + ids.shape[1])
    leading = jnp.take_along_axis(tree.ancestors, parents[:, :, None], axis=1)
    return Tree(
        tokens=tree.tokens.at[:, nodes].set(ids),
        parents=tree.parents.at[:, nodes].set(parents),
        roots=tree.roots.at[:, nodes].set(jnp.take_along_axis(tree.roots, parents, axis=1)),
        depths=tree.depths.at[:, nodes].set(depth),
        ancestors=tree.ancestors.at[:, nodes].set(leading | tree.ancestors[:, nodes]),
    )


def _told(log_probs: Array, known: Array | None, last: Scored | None) -> Array:
    """Replaces log-probabilities [B, R, V] by the target's if its last call scored a node."""
    if known is None or last is None:
        return log_probs
    by_target = jnp.take_along_axis(last.log_probs, jnp.maximum(known, 0)[:, :, None], axis=1)
    return jnp.where((known >= 0)[:, :, None], by_target, log_probs)


def _found(parents: Array, ids: Array, last: Scored | None) -> Array:
    """Returns the nodes of the last tree with these parents and tokens, [B, u]; -1 for none."""
    assert last is not None
    tree = last.tree
    same = (tree.parents[:, None] == parents[:, :, None]) & (parents >= 0)[:, :, None]
    same &= tree.tokens[:, None] == ids[:, :, None]
    nodes = jnp.argmax(same, axis=2).astype(jnp.int32)
    return jnp.where(jnp.any(same, axis=2), nodes, -1)
