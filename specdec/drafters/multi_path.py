"""A drafter whose smaller model proposes several continuations for one target call."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from specdec.common.values import PositiveInt
from specdec.drafters.autoregressive import Autoregressive
from specdec.drafters.matching import NOTHING, slices
from specdec.models.contract import draft_tree, loops
from specdec.models.contract.draft_tree import ROOT, Nodes
from specdec.models.contract.model import decode_block
from specdec.sampling import draw, fit_vocabulary, looks_back, unprocessed
from specdec.types import Array, Cache, Context, Draft, History, Params, Part, PyTree, Request


class TreeMemory(struct.PyTreeNode):
    """The KV cache of a draft model, with the entries of its last draft after the text."""

    cache: Cache  # the model's; its length excludes the last draft
    tokens: Array  # [B, T] int32, the last draft
    nodes: Nodes  # the parent of each draft token
    start: Array  # [B] int32, the position of the first draft token

    def known(self, context: Context) -> Cache:
        """Returns the cache in which the entries of accepted draft tokens belong to the text."""
        width = self.nodes.width
        fed = self.tokens.shape[1] - width  # the last token of each path was not fed
        if not fed:
            return self.cache
        nodes = jax.tree.map(lambda x: x[:, :fed], self.nodes)
        text = slices(context.tokens, self.start, fed // width)
        path = draft_tree.kept_nodes(nodes, self.tokens[:, :fed], text, context.length - self.start)
        cache = self.cache.keep(self.start, path.nodes, fed)
        return cache.rewind(self.cache.length + path.kept)


class _Depth(NamedTuple):
    """The last token of each path of an unfinished draft."""

    tokens: Array  # [B, w] int32
    lead: Array  # [B, w, T] bool, whether each draft token is on the path to this one, or this one
    scores: Array  # [B, w] float32, log-probabilities of the paths; -inf for no path
    text: History | None  # [B * w], the text with each path; None if no processor reads it


@dataclasses.dataclass(frozen=True)
class MultiPath(Autoregressive):
    """Drafts several continuations with its own model: paths if it samples, else a tree.

    Sampling draws w independent paths, each as `Autoregressive` draws its only one. Paths may have
    tokens in common. The verifier tests one path after the other (`by_rounds`).

    A greedy drafter proposes a draft tree. With each further token it keeps the w paths that the
    model finds likeliest. One of them is always the draft of `Autoregressive`, so at least as many
    tokens are accepted.

    One call feeds the tokens of all paths in one cache row; see `models.contract.draft_tree`.

    Args:
      paths: w, the number of draft tokens at each position; 1 drafts as `Autoregressive` does.

    Example:

    >>> from specdec.sampling import Greedy
    >>> from specdec.testing import TableTarget
    >>> drafter = MultiPath(TableTarget(vocab_size=11), Greedy(), paths=4)
    >>> [(part.width, part.calls) for part in drafter.parts(length=5)]  # model calls of a draft
    [(2, 1), (4, 4)]
    """

    paths: PositiveInt = 4  # type: ignore[assignment]

    @property
    def certain(self) -> bool:
        return self.sampling.greedy

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        return (Part(self.role, 2, min(length, 1)), Part(self.role, self.paths, max(length - 1, 0)))

    def init(self, params: Params, context: Context) -> PyTree:
        memory = super().init(params, context)
        none = Nodes(jnp.full_like(memory.tokens, ROOT), memory.tokens > 0, self.paths)
        return TreeMemory(memory.cache, memory.tokens, none, memory.start)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, start, width = request.context, request.context.length, self.paths
        longest = request.longest // width
        steps = self.begin(params, context, state, longest=longest)
        rows = len(start)
        keys = request.keys.reshape(rows, width, longest)
        text = context.history if looks_back(self.sampling) else None
        root = _Depth(
            tokens=jnp.zeros([rows, 1], jnp.int32),
            lead=jnp.zeros([rows, 1, request.longest], bool),
            scores=jnp.zeros([rows, 1], jnp.float32),
            text=text,
        )
        first, drawn = self._extend(steps.logits[:, None], root, keys[:, :, 0], 0, context)

        def extend(loop, step):
            cache, last = loop
            depth, keys_of_depth = step
            at = cache.rewind(start + (depth - 1) * width)
            seen = draft_tree.view(last.lead, depth - 1, start, cache.capacity)
            ids = jnp.clip(last.tokens, 0, context.vocab_size and context.vocab_size - 1)
            output, cache = decode_block(self.model, params[self.role], ids, at, ancestors=seen)
            last, drawn = self._extend(output.logits, last, keys_of_depth, depth, context)
            return (cache, last), drawn

        rest = jnp.arange(1, longest, dtype=jnp.int32), keys[:, :, 1:].transpose(2, 0, 1)
        (cache, _), others = loops.scan(extend, (steps.carry, first), rest)

        def joined(head: Array, tail: Array) -> Array:
            every = jnp.concatenate([head[None], tail]).swapaxes(0, 1)
            return every.reshape(rows, request.longest, *head.shape[2:])

        tokens, parents, probs = jax.tree.map(joined, drawn, others)
        nodes = Nodes(parents, jnp.ones(tokens.shape, bool), width)
        memory = TreeMemory(cache.rewind(start), tokens, nodes, start)
        return Draft(tokens, probs, request.want, nodes=nodes), memory

    def _extend(
        self, logits: Array, last: _Depth, keys: Array, depth: Array | int, context: Context
    ) -> tuple[_Depth, tuple[Array, Array, Array | None]]:
        """Returns the paths with one more token, and its ids, parents and q, [B, w, ...] each.

        The logits are [B, w, V], or [B, 1, V] after the pending token; the keys are [B, w].
        """
        if context.vocab_size is not None:
            logits = fit_vocabulary(logits, context.vocab_size)
        rows, before, size = logits.shape
        if last.text is not None:
            flat = self.sampling.process(logits.reshape(-1, size), last.text)  # type: ignore
            logits = flat.reshape(logits.shape)
        if self.sampling.greedy:
            tokens, parents, scores = _likeliest(logits, last, self.paths, context.stop_ids)
            probs = None
        else:
            logits = jnp.broadcast_to(logits, (rows, self.paths, size))
            places = jnp.broadcast_to(context.length[:, None] - 1 + depth, (rows, self.paths))
            probs = unprocessed(self.sampling).probabilities(logits, places)
            tokens = jax.vmap(jax.vmap(draw))(keys, probs)
            index = jnp.arange(self.paths, dtype=jnp.int32)
            parents = jnp.broadcast_to(jnp.minimum(index, before - 1), (rows, self.paths))
            scores = jnp.zeros([rows, self.paths], jnp.float32)
        at = depth * self.paths + jnp.arange(self.paths)
        itself = jnp.arange(last.lead.shape[2])[None] == at[:, None]  # [w, T]
        lead = jnp.take_along_axis(last.lead, parents[:, :, None], axis=1) | itself[None]
        text = None
        if last.text is not None:
            of_parents = (jnp.arange(rows)[:, None] * before + parents).reshape(-1)
            text = jax.tree.map(lambda x: x[of_parents], last.text).append(tokens.reshape(-1))
        numbered = jnp.where(depth > 0, (depth - 1) * self.paths + parents, ROOT)
        return _Depth(tokens, lead, scores, text), (tokens, numbered.astype(jnp.int32), probs)


def _likeliest(
    logits: Array, last: _Depth, width: int, stop_ids: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Returns tokens, parents and scores of the likeliest continuations of the paths, [B, w] each.

    The first is always the likeliest token of the first path. If there are fewer than w, because
    paths ended with a stop id or the vocabulary is small, the others are NOTHING.
    """
    rows, before, size = logits.shape
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    log_probs = jnp.where(jnp.isfinite(log_probs), log_probs, -jnp.inf)
    best, ids = jax.lax.top_k(log_probs, min(width, size))
    of_paths = (best + last.scores[:, :, None]).reshape(rows, -1)
    missing = ((0, 0), (0, max(width - of_paths.shape[1], 0)))
    scores = jnp.pad(of_paths.at[:, 0].set(jnp.inf), missing, constant_values=-jnp.inf)
    scores, index = jax.lax.top_k(scores, width)
    there = scores > -jnp.inf
    index = jnp.minimum(index, before * best.shape[2] - 1)
    parents = index // best.shape[2]
    tokens = jnp.take_along_axis(ids.reshape(rows, -1), index, axis=1)
    chosen = jnp.take_along_axis(of_paths, index, axis=1)
    # If logits are not finite, no token is the likeliest: use an id that does not exist.
    tokens = jnp.where(there & (chosen > -jnp.inf), tokens, jnp.where(there, size, NOTHING))
    ends = jnp.isin(tokens, jnp.array(stop_ids, int))
    return tokens.astype(jnp.int32), parents, jnp.where(there & ~ends, chosen, -jnp.inf)
