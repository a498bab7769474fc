"""Beam search in one compiled program, with or without a tree of drafted beams for each call.

Each iteration takes one target call on w pending tokens and the nodes of a draft's tree. Then the
bookkeeping of the search is replayed, step by step, as long as all w live beams are nodes of the
tree. The beams, their order and their scores are therefore those of the search without a draft.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from specdec.decoding import states
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamSet, best_first
from specdec.decoding.draft_beams import Continued, Layer, Scored, Tree, rooted, view_of
from specdec.decoding.finite import check_finite
from specdec.decoding.forcing import given_lengths, unpadded
from specdec.models.contract import loops
from specdec.models.contract.model import decode_block
from specdec.sampling import Greedy, Processed
from specdec.types import Array, Cache, History, Params, Prompt, PyTree


class BeamTrace(struct.PyTreeNode):
    """The target calls and steps of a search.

    Column i is the row's i-th target call; later columns are 0.
    """

    steps: Array  # [B, N] int32, the steps of the search that each call yielded
    calls: Array  # [B] int32, target calls the row took part in
    failed: Array  # [B] bool, rows that ended because the target's logits were not finite


class BeamOutput(NamedTuple):
    """The beams of each text, best first.

    Texts exclude the start token, include the stop id that ends them, and are 0 after it. A place
    without a text has length 0. Where `finished` is False and the length is not 0, the search found
    no stop id, and the score is the plain log-probability.
    """

    tokens: Array  # [B, w, N] int32; [B, 1, N] of a plan for the best text only
    length: Array  # [B, w] int32
    scores: Array  # [B, w] float32, as the rule normalises them
    finished: Array  # [B, w] bool
    trace: BeamTrace

    def made(self, index: int) -> int:
        """Returns the number of steps that the search of a row has made."""
        return int(jnp.sum(self.trace.steps[index]))

    def texts(self, index: int) -> list[list[int]]:
        """Returns the ids of a row's beams, the best first, without places that hold no text."""
        lengths = self.length[index]
        return [self.tokens[index, i, :n].tolist() for i, n in enumerate(lengths) if n]


class BeamState(struct.PyTreeNode):
    """Everything that changes while a batch is searched."""

    beams: BeamSet  # of each row
    path: Array  # [B, w, N] int32, see `models.contract.beam_tree`
    previous: Layer  # the tokens before the pending ones
    cache: Cache  # the target's
    draft: PyTree  # the draft's cache; () without one
    last: Scored | None
    prompt: Prompt | None  # that processors read
    trace: BeamTrace
    size: int = struct.field(pytree_node=False)  # V


def beam_search(
    params: Params,
    inputs: PyTree,
    plan: BeamPlan,
    *,
    active: Array | None = None,
    prefix: Array | None = None,
) -> BeamOutput:
    """Searches for the best texts of a batch; one compiled program, one dispatch.

    A drafter changes neither the beams, their order, their scores nor the number of steps: they are
    those of `plan.alone()`, up to the rounding of calls of another width. A row does not depend on
    the other rows.

    The arguments are those of `decode`. It raises ValueError for a shape that cannot work, before
    anything is compiled, and NonFiniteLogits if the target's logits after a live beam are NaN or
    infinite. While this function is traced, `BeamTrace.failed` marks such rows, which end there.
    """
    states.check_inputs(inputs, active, prefix, plan.target, plan.max_length)
    output = _search(params, inputs, plan=plan, active=active, prefix=prefix)
    check_finite(output, plan.target)
    return output


@functools.partial(jax.jit, static_argnames="plan")
def _search(params, inputs, *, plan: BeamPlan, active, prefix) -> BeamOutput:
    state = prefill(params, inputs, plan, active=active, prefix=prefix)
    advance = functools.partial(step, params, plan=plan)
    state = loops.while_loop(lambda state: jnp.any(state.beams.active), advance, state)
    return output(state, plan)


@functools.partial(jax.jit, static_argnames="plan")
def prefill(
    params: Params,
    inputs: PyTree,
    plan: BeamPlan,
    *,
    active: Array | None = None,
    prefix: Array | None = None,
) -> BeamState:
    """Reads the inputs and returns everything that `step` updates; arguments of `beam_search`."""
    target = plan.target
    rows, longest = states.rows_of(inputs), plan.max_length
    cache = target.prefill(params["target"], inputs, plan.slots.capacity)
    draft: PyTree = plan.drafter.init(params, inputs, cache) if plan.drafter else ()
    tokens = jnp.zeros([rows, 1 + longest], jnp.int32).at[:, 0].set(target.start(inputs))
    lengths = jnp.zeros([rows], jnp.int32)
    shapes, _ = jax.eval_shape(target.decode, params["target"], tokens[:, :1], cache)
    if prefix is not None:
        tokens = tokens.at[:, 1 : 1 + prefix.shape[1]].set(unpadded(target, prefix))
        lengths = given_lengths(target, prefix)
        fed = jnp.repeat(tokens[:, : prefix.shape[1]], plan.beams, axis=1)
        seen = plan.slots.of_prefix(rows, prefix.shape[1])
        _, cache = decode_block(target, params["target"], fed, cache, ancestors=seen)
        if plan.drafter:
            weights = params[plan.drafter.role]
            _, draft = decode_block(plan.drafter.model, weights, fed, draft, ancestors=seen)
    searched: Array = target.active(inputs) if active is None else active
    begin = functools.partial(plan.rule.begin, beams=plan.beams)
    beams = jax.vmap(begin)(tokens, lengths, searched)
    path = jnp.zeros([rows, plan.beams, longest], jnp.int32)
    state = BeamState(
        beams=beams,
        path=path,
        previous=Layer(_last_tokens(beams, 2), path),
        cache=cache,
        draft=draft,
        last=_nothing_scored(rows, shapes.logits.shape[-1], plan),
        prompt=target.prompt(inputs) if plan.processors else None,
        trace=BeamTrace(
            steps=jnp.zeros([rows, longest], jnp.int32),
            calls=jnp.zeros([rows], jnp.int32),
            failed=jnp.zeros([rows], bool),
        ),
        size=shapes.logits.shape[-1],
    )
    return states.divided_by_rows(state, rows)


def _nothing_scored(rows: int, size: int, plan: BeamPlan) -> Scored | None:
    if plan.drafter is None or not plan.drafter.reuse:
        return None
    none = jnp.zeros([rows, plan.beams], jnp.int32)
    log_probs = jnp.zeros([rows, plan.width, size], jnp.float32)
    return Scored(rooted(none, plan.width), log_probs, none - 1)


@functools.partial(jax.jit, static_argnames="plan")
def step(params: Params, state: BeamState, plan: BeamPlan) -> BeamState:
    """Runs one iteration for every active row: a tree, one target call, and the steps that it
    yields.
    """
    beams, slots, target = state.beams, plan.slots, plan.target
    # A full row is still fed while other rows continue: its writes must fit.
    layers = jnp.minimum(beams.length - 1, plan.max_length - 1)
    pending = Layer(_last_tokens(beams, 1), state.path)
    draft = state.draft
    if plan.drafter:
        with jax.named_scope("draft"):
            text = Continued(pending, state.previous, layers, beams.live_scores, state.last)
            tree, draft = plan.drafter.grow(params, text, draft, slots, state.size, plan.stop_ids)
    else:
        tree = rooted(pending.tokens, plan.beams)
    with jax.named_scope("verify"):
        seen = view_of(tree, slice(None), state.path, layers, slots)
        cache = state.cache.rewind(layers * plan.beams)
        scored, cache = decode_block(target, params["target"], tree.tokens, cache, ancestors=seen)
    with jax.named_scope("replay"):
        replay = _replayed(state, tree, scored.logits, layers, plan)
        if plan.drafter:
            start = (layers + 1) * plan.beams
            used = replay.kept - plan.beams
            cache = cache.keep(start, used, plan.drafter.nodes)
            draft = plan.drafter.keep(draft, start, used)
    last = state.last
    if last is not None:
        last = Scored(tree, jax.nn.log_softmax(scored.logits, axis=-1), replay.nodes)
    trace, columns = state.trace, jnp.arange(plan.max_length)[None]
    column = beams.active[:, None] & (columns == trace.calls[:, None])
    return state.replace(
        beams=replay.beams,
        path=replay.path,
        previous=replay.previous,
        cache=cache,
        draft=draft,
        last=last,
        trace=BeamTrace(
            steps=jnp.where(column, replay.steps[:, None], trace.steps),
            calls=trace.calls + beams.active,
            failed=trace.failed | replay.failed,
        ),
    )


class _Replay(struct.PyTreeNode):
    """The state of a search while its steps are replayed on a draft's tree."""

    beams: BeamSet
    path: Array  # [B, w, N]
    previous: Layer
    nodes: Array  # [B, w] int32, of the live beams; -1 for one that is no node
    kept: Array  # [B, gamma * w] int32, nodes that the cache keeps
    steps: Array  # [B] int32
    going: Array  # [B] bool, rows whose live beams are all nodes of the tree
    failed: Array  # [B] bool


def _replayed(
    state: BeamState, tree: Tree, logits: Array, layers: Array, plan: BeamPlan
) -> _Replay:
    """Returns the search after the steps of a call, for each row as many as its tree allows."""
    rows, width = tree.tokens.shape[0], plan.beams
    pending = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (rows, width))
    replay = _Replay(
        beams=state.beams,
        path=state.path,
        previous=state.previous,
        nodes=pending,
        kept=jnp.zeros([rows, plan.depth * width], jnp.int32),
        steps=jnp.zeros([rows], jnp.int32),
        going=state.beams.active,
        failed=jnp.zeros([rows], bool),
    )
    call = tree, logits, layers, state.prompt

    def one_step(replay: _Replay, depth: Array | int) -> _Replay:
        return _one_step(replay, depth, *call, plan=plan)

    if not plan.drafter:
        return one_step(replay, 0)

    def go_on(loop: tuple[Array, _Replay]) -> Array:
        return jnp.any(loop[1].going) & (loop[0] <= plan.depth)

    def advance(loop: tuple[Array, _Replay]) -> tuple[Array, _Replay]:
        return loop[0] + 1, one_step(loop[1], loop[0])

    return jax.lax.while_loop(go_on, advance, (jnp.int32(0), replay))[1]


def _one_step(
    replay: _Replay,
    depth: Array | int,
    tree: Tree,
    logits: Array,
    layers: Array,
    prompt: Prompt | None,
    *,
    plan: BeamPlan,
) -> _Replay:
    """Returns the search after one step in the rows that continue."""
    beams, nodes = replay.beams, jnp.maximum(replay.nodes, 0)
    of_live = jnp.take_along_axis(logits, nodes[:, :, None], axis=1)
    finite = jnp.all(jnp.isfinite(jnp.max(of_live, axis=-1)), axis=1)
    log_probs = processed(jax.nn.log_softmax(of_live, axis=-1), beams, prompt, plan)
    advance = functools.partial(plan.rule.advance, stop_ids=plan.stop_ids, best_only=plan.best_only)
    after, parents = jax.vmap(advance)(beams, log_probs)
    at = layers + depth  # the output position of the nodes
    path = _led(replay.path, parents, at)
    children = _children(tree, jnp.take_along_axis(nodes, parents, axis=1), _last_tokens(after, 1))
    width = plan.beams
    at_depth = jnp.arange(replay.kept.shape[1])[None] // width == depth - 1
    used = jnp.where(at_depth, jnp.tile(nodes, (1, plan.depth)), replay.kept)
    stepped = replay.going & finite
    failed = replay.going & ~finite
    all_nodes = jnp.all(children >= 0, axis=1)
    new = _Replay(
        beams=after,
        path=path,
        previous=Layer(_last_tokens(beams, 1), replay.path),
        nodes=children,
        kept=used,
        steps=replay.steps + 1,
        going=after.active & all_nodes,
        failed=failed,
    )
    old = replay.replace(
        beams=beams.replace(active=beams.active & ~failed),
        going=jnp.zeros_like(replay.going),
        failed=replay.failed | failed,
    )
    return jax.tree.map(functools.partial(_where_rows, stepped), new, old)


def _led(path: Array, parents: Array, layer: Array) -> Array:
    """Returns the live beams' paths [B, w, N]: their parents', with the parent at `layer` [B]."""
    path = jnp.take_along_axis(path, parents[:, :, None], axis=1)
    here = jnp.arange(path.shape[2])[None, None] == layer[:, None, None]
    return jnp.where(here, parents[:, :, None], path)


def _where_rows(rows: Array, new: Array, old: Array) -> Array:
    return jnp.where(rows.reshape([-1] + [1] * (new.ndim - 1)), new, old)


def processed(log_probs: Array, beams: BeamSet, prompt: Prompt | None, plan: BeamPlan) -> Array:
    """Returns the log-probabilities [B, w, V] after the plan's processors."""
    if not plan.processors:
        return log_probs
    rows, width = log_probs.shape[:2]
    texts = beams.live_tokens.reshape(rows * width, -1)
    history = History(texts, jnp.repeat(beams.length, width), plan.stop_ids)
    history = history.after(jax.tree.map(lambda x: jnp.repeat(x, width, axis=0), prompt))
    flat = log_probs.reshape(rows * width, -1)
    return rule_of(plan).process(flat, history).reshape(log_probs.shape)


def rule_of(plan: BeamPlan) -> Processed:
    """Returns the processors of a plan as one sampling rule."""
    return Processed(Greedy(), plan.processors)


def _children(tree: Tree, parents: Array, tokens: Array) -> Array:
    """Returns the nodes with these parents and tokens, [B, w] int32; -1 where there is none."""
    same = (tree.parents[:, None] == parents[:, :, None]) & (
        tree.tokens[:, None] == tokens[:, :, None]
    )
    return jnp.where(jnp.any(same, axis=2), jnp.argmax(same, axis=2), -1).astype(jnp.int32)


def _last_tokens(beams: BeamSet, back: int) -> Array:
    """Returns the token of each live beam that is `back` places before its end, [B, w] int32."""
    at = jnp.clip(beams.length - back, 0, beams.live_tokens.shape[-1] - 1)
    return jnp.take_along_axis(beams.live_tokens, at[:, None, None], axis=2)[:, :, 0]


def output(state: BeamState, plan: BeamPlan) -> BeamOutput:
    """Returns the output of a search that is over."""
    best = jax.vmap(functools.partial(best_first, plan.rule))(state.beams)
    count = 1 if plan.best_only else plan.beams
    return BeamOutput(
        tokens=best.tokens[:, :count, 1:],
        length=best.lengths[:, :count],
        scores=best.scores[:, :count],
        finished=best.finished[:, :count],
        trace=state.trace,
    )
