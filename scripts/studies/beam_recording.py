"""The steps per target call of drafted beams, predicted from a search without drafts.

At each step of that search a draft grows a tree, which is not used, and both models score its
nodes. A search with drafts takes the same steps and grows its trees from the same scores. A call
yields the steps whose beams are all in its tree, so its steps can be looked up. Only a node that no
recorded tree has is unknown; it counts as a node without continuations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_search import BeamState, prefill, step
from specdec.decoding.draft_beams import Continued, DraftBeams, Tree, usable, view_of
from specdec.models.contract.beam_tree import Slots
from specdec.models.contract.model import decode_block
from specdec.types import Array, Cache, Params, PyTree

Text: TypeAlias = tuple[int, ...]  # a beam's ids, the start token first
Beams: TypeAlias = Sequence[tuple[Text, float]]  # with their scores


class Continuations(NamedTuple):
    """The likeliest continuations of a text by each model: ids and log-probabilities, without stop
    ids."""

    draft: Sequence[tuple[int, float]]
    target: Sequence[tuple[int, float]]


class BeamRecording(NamedTuple):
    """A search for the beams of one text."""

    live: list[Beams]  # before each step
    opinions: dict[Text, Continuations]  # of the beams and of the nodes that drafts made of them


def record(
    params: Params, inputs: PyTree, plan: BeamPlan, width: int, depth: int
) -> list[BeamRecording]:
    """Searches for the beams of a batch of texts, and returns a recording of each row."""
    if plan.drafter is None:
        raise ValueError("the plan has no drafter, whose opinions are recorded; give one")
    own = plan.drafter
    drafter = _Watched(own.model, width, depth, own.view, role=own.role)
    watched = dataclasses.replace(plan, drafter=drafter)
    state = prefill(params, inputs, watched)
    found = [BeamRecording([], {}) for _ in state.beams.active]
    while np.any(state.beams.active):
        before = jax.device_get(state.beams)
        state, seen = _observed(params, state, watched)
        seen = jax.device_get(seen)
        for row in np.flatnonzero(before.active):
            beams, one = jax.tree.map(lambda x, row=row: x[row], (before, seen))
            texts = [tuple(text[: beams.length].tolist()) for text in beams.live_tokens]
            found[row].live.append(list(zip(texts, beams.live_scores.tolist(), strict=True)))
            found[row].opinions.update(_opinions(texts, one))
    return found


def steps_and_calls(recordings: Sequence[BeamRecording], drafter: DraftBeams) -> tuple[int, int]:
    """Returns the steps of some searches with a draft, and their target calls."""
    found = [_replayed(one, drafter) for one in recordings]
    return sum(len(one.live) for one in recordings), sum(found)


def _replayed(recording: BeamRecording, drafter: DraftBeams) -> int:
    """Returns the target calls of one search."""
    live, place, calls = recording.live, 0, 0
    last: set[Text] = set()  # the nodes of the last tree
    while place < len(live):
        levels = [live[place]]
        for _ in range(drafter.depth):
            children = _children(levels[-1], recording.opinions, last)
            levels.append(sorted(children, key=lambda one: -one[1])[: drafter.width])
        nodes = [{text for text, _ in level} for level in levels]
        worth = 1
        for beams, drafted in zip(live[place + 1 :], nodes[1:], strict=False):
            if not {text for text, _ in beams} <= drafted:
                break
            worth += 1
        place, calls = place + worth, calls + 1
        last = set().union(*nodes) if drafter.reuse else set()
    return calls


def _children(
    level: Beams, opinions: Mapping[Text, Continuations], known: set[Text]
) -> Iterator[tuple[Text, float]]:
    """Yields the continuations of some texts, with scores by the target where it scored them, or
    the draft."""
    for text, score in level:
        if text in opinions:
            said = opinions[text].target if text in known else opinions[text].draft
            yield from (((*text, token), score + more) for token, more in said)


class _Seen(NamedTuple):
    """A tree, and the likeliest continuations of each node by both models."""

    tree: Tree
    draft: tuple[Array, Array]  # log-probabilities and ids, [B, T, u]
    target: tuple[Array, Array]


@functools.partial(jax.jit, static_argnames="plan")
def _observed(params: Params, state: BeamState, plan: BeamPlan) -> tuple[BeamState, _Seen]:
    """Returns the state after one step of the search without drafts, and the scores of the tree."""
    state = step(params, state, plan)
    assert state.last is not None and plan.drafter is not None
    tree, of_draft = state.draft[1]
    stops, width = jnp.array(plan.stop_ids, int), min(plan.drafter.width, state.size)
    draft, target = (
        jax.lax.top_k(said.at[:, :, stops].set(-jnp.inf), width)
        for said in (of_draft, state.last.log_probs)
    )
    return state, _Seen(tree, draft, target)


def _opinions(live: Sequence[Text], seen: _Seen) -> Iterator[tuple[Text, Continuations]]:
    """Yields the scores in one row's tree, by the text of each node."""
    texts = list(live)
    nodes = zip(seen.tree.tokens.tolist(), seen.tree.parents.tolist(), strict=True)
    for token, parent in list(nodes)[len(live) :]:
        texts.append((*texts[parent], token))
    draft, target = (
        [list(zip(i, p, strict=True)) for p, i in zip(scores.tolist(), ids.tolist(), strict=True)]
        for scores, ids in (seen.draft, seen.target)
    )
    yield from zip(texts, map(Continuations, draft, target), strict=True)


class _Watched(DraftBeams):
    """A drafter that grows trees of which no step is taken, since the parents of nodes are hidden.

    Its cache is the draft's, with the last tree and the draft's log-probabilities of all nodes, [B,
    T, V].
    """

    def init(self, params: Params, inputs: PyTree, given: Cache) -> PyTree:
        return super().init(params, inputs, given), ()

    def grow(
        self,
        params: Params,
        text: Continued,
        cache: PyTree,
        slots: Slots,
        size: int,
        stop_ids: tuple[int, ...],
    ) -> tuple[Tree, PyTree]:
        text = text.replace(last=None)
        tree, cache = super().grow(params, text, cache[0], slots, size, stop_ids)
        seen = view_of(tree, slice(None), text.pending.path, text.layers, slots)
        at = cache.rewind(text.layers * slots.beams)
        own = params[self.role]
        output, cache = decode_block(self.model, own, tree.tokens, at, ancestors=seen)
        hidden = tree.replace(parents=jnp.full_like(tree.parents, -1))
        return hidden, (cache, (tree, usable(output.logits, size)))

    def keep(self, cache: PyTree, start: Array, kept: Array) -> PyTree:
        return cache
