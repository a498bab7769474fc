"""The initial state of the loop, and the functions that change it."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec

from specdec.decoding.finite import is_known
from specdec.decoding.forcing import force, given_lengths, unpadded
from specdec.decoding.keys import purpose_keys
from specdec.models.contract.cache import write_rows
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.sampling import looks_back, standardised
from specdec.types import (
    Array,
    DecodeOutput,
    DecodeState,
    Draft,
    History,
    ModelOutput,
    Params,
    PyTree,
    Revised,
    Scores,
    Trace,
    Verdict,
)
from specdec.verifiers.decide import leading, usable_tokens


def rows_of(inputs: PyTree) -> int:
    """Returns B, the length of the first axis of the first leaf."""
    leaves = jax.tree.leaves(inputs)
    if not leaves or not np.ndim(leaves[0]):
        raise ValueError(
            f"inputs are {jax.tree.structure(inputs)}; give arrays with one row per text"
        )
    return leaves[0].shape[0]


def empty(
    params: Params, keys: Array, inputs: PyTree, plan: Plan, active: Array | None
) -> DecodeState:
    """Returns the state of a batch before anything is decoded, without the drafter's state."""
    target, batch, longest = plan.target, rows_of(inputs), plan.max_length
    cache = target.prefill(params["target"], inputs, plan.capacity)
    tokens = jnp.zeros([batch, 1 + longest], jnp.int32)
    tokens = tokens.at[:, 0].set(target.start(inputs))
    hidden = None
    if plan.reads_hidden:  # a second trace of the target, which takes long where it is deep
        output, _ = jax.eval_shape(target.decode, params["target"], tokens[:, :1], cache)
        # room for each token's hidden state, and for one call after the last token
        size = batch, 1 + plan.capacity + 1, output.hidden.shape[2]
        hidden = jnp.zeros(size, output.hidden.dtype)
    return DecodeState(
        tokens=tokens,
        length=jnp.ones([batch], jnp.int32),
        active=target.active(inputs) if active is None else active,
        cache=cache,
        hidden=hidden,
        drafter=(),
        schedule=plan.schedule.init(batch),
        keys=jax.vmap(purpose_keys)(keys),
        inputs=inputs,
        log_probs=jnp.zeros([batch, longest], jnp.float32),
        trace=_empty_trace(batch, longest, plan),
        vocab_size=target.vocab_size,
    )


def _with_states(hidden: Array | None, of_call: Array, start: Array) -> Array | None:
    """Writes a call's hidden states [B, T, D] into `hidden`, from token `start` [B] on."""
    if hidden is None:
        return None
    return write_rows(hidden[:, None], of_call[:, :, None], start)[:, 0]


def _empty_trace(batch: int, longest: int, plan: Plan) -> Trace:
    return Trace(
        proposed=jnp.zeros([batch, longest, plan.longest_draft], jnp.int32),
        drafted=jnp.zeros([batch, longest], jnp.int32),
        accepted=jnp.zeros([batch, longest], jnp.int32),
        calls=jnp.zeros([batch], jnp.int32),
        ended_in_draft=jnp.zeros([batch], bool),
        steps=jnp.zeros([], jnp.int32),
        source=jnp.zeros([batch, longest], jnp.int32) if plan.sources else None,
        depth=jnp.zeros([batch, longest], jnp.int32) if plan.target.depths else None,
        broken_drafts=jnp.zeros([batch], jnp.int32),
        failed=jnp.zeros([batch], bool),
    )


def begin_with(prefix: Array, state: DecodeState, target: Target, params: PyTree) -> DecodeState:
    """Commits the tokens of a prefix [B, P]; the last one of each row becomes the pending token."""
    log_probs, output, cache = force(target, params, state.tokens[:, 0], prefix, state.cache)
    lengths = given_lengths(target, prefix)
    size = prefix.shape[1]
    return state.replace(
        tokens=state.tokens.at[:, 1 : 1 + size].set(unpadded(target, prefix)),
        length=1 + lengths,
        active=state.active & (lengths < state.log_probs.shape[1]),
        cache=cache.rewind(lengths),
        hidden=_with_states(state.hidden, output.hidden, state.length),
        log_probs=state.log_probs.at[:, :size].set(log_probs),
    )


def divided_by_rows(tree: PyTree, batch: int) -> PyTree:
    """Divides the arrays that have rows over the mesh's axis `data`, if there is one.

    So does `step`. Otherwise, XLA would start with zeros for all rows on every device.
    """
    if "data" not in jax.sharding.get_abstract_mesh().axis_names:
        return tree

    def place(x: Array) -> Array:
        if x.shape[:1] != (batch,):
            return x
        others = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec("data", *others))

    return jax.tree.map(place, tree)


def trim(draft: Draft, want: Array, vocab_size: int, stop_ids: tuple[int, ...]) -> Draft:
    """Cuts each row's draft to what may be verified.

    A draft ends at the wanted length, after its first stop id, and before its first unusable token:
    one that does not exist, or whose q is not a distribution.

    Stopping after a token that was seen is exact. Stopping before a token because of its q is exact
    too, since q depends only on earlier tokens. An id outside the vocabulary cannot have been drawn
    from q. Tokens that are cut become token 0, so that the target is fed only real ids.
    """
    index = jnp.arange(draft.tokens.shape[1])[None]
    width = draft.tokens.shape[1]
    usable = (draft.tokens >= 0) & (draft.tokens < vocab_size) & usable_tokens(draft)
    stops = ends_text(draft.tokens, stop_ids)
    after_stop = jnp.min(jnp.where(stops, index + 1, width), axis=1, initial=width)
    end = jnp.maximum(jnp.minimum(jnp.minimum(draft.length, want), after_stop), 0)
    length = jnp.minimum(end, leading(usable)).astype(jnp.int32)
    return shortened(draft, length).replace(broken=length < end)


def shortened(draft: Draft, length: Array) -> Draft:
    """Returns the draft with its first `length` [B] tokens; the others become 0."""
    index = jnp.arange(draft.tokens.shape[1])[None]
    tokens = jnp.where(index < length[:, None], draft.tokens, 0)
    return draft.replace(tokens=tokens, length=length)


def cut(draft: Draft, width: int) -> Draft:
    """Returns the draft in a buffer of `width` tokens, which must hold all that is drafted."""
    probs, beliefs = (None if x is None else x[:, :width] for x in (draft.probs, draft.beliefs))
    resume = draft.resume and draft.resume.replace(stream=draft.resume.stream[:, :width])
    tokens = draft.tokens[:, :width]
    return draft.replace(tokens=tokens, probs=probs, beliefs=beliefs, resume=resume)


def opinion(
    logits: Array, draft: Draft, tokens: Array, length: Array, inputs: PyTree, plan: Plan
) -> Scores:
    """Returns the target's scores of a draft's tokens, and of the token after each.

    `logits` [B, 1+T, V] are the target's after the pending token and each of the T drafted ones.
    `tokens` [B, 1+N] is the committed text, and `length` [B] its length.
    """
    nodes, shape, history = draft.nodes, logits.shape, None
    positions = length[:, None] - 1
    depths = jnp.arange(shape[1]) if nodes is None else jnp.pad(nodes.depths + 1, (1, 0))
    positions += depths[None]
    if looks_back(plan.sampling):
        history = History(tokens, length, plan.stop_ids).after(plan.target.prompt(inputs))
        if nodes is None:
            history = history.ahead(draft.tokens)
        else:
            history = _along_nodes(history, draft, depths)
            logits, positions = logits.reshape(-1, shape[2]), positions.reshape(-1)
    processed_logits, probs = standardised(plan.sampling, logits, positions, history)
    scores = processed_logits.reshape(shape), probs.reshape(shape)
    return Scores(*scores, plan.sampling.greedy, processed=history is not None)


def _along_nodes(history: History, draft: Draft, depths: Array) -> History:
    """Returns the history of the next token after each token of a call, [B * (1+T)]."""
    nodes, total = draft.tree, len(depths)
    tokens = jnp.where(nodes.lead(), draft.tokens[:, None], 0)
    chains = jnp.sum(tokens.reshape(*tokens.shape[:2], -1, nodes.width), axis=3)
    chains = jnp.pad(chains, ((0, 0), (1, 0), (0, 0))).astype(jnp.int32)
    text = jax.tree.map(functools.partial(jnp.repeat, repeats=total, axis=0), history)
    ahead = text.ahead(chains.reshape(-1, chains.shape[2]))
    return ahead.replace(length=text.length + jnp.tile(depths, len(history.length)))


def finite_rows(logits: Array, scores: Scores) -> Array:
    """Returns [B, K+1] bool, the rows of logits from which a token can be chosen.

    Single entries may be -inf. A row is not usable if it has NaN or +inf, or nothing but -inf,
    before or after processors.
    """
    finite = jnp.isfinite(jnp.max(logits, axis=-1))
    if scores.processed:
        finite &= jnp.isfinite(jnp.max(scores.logits, axis=-1))
    return finite


def commit(
    state: DecodeState,
    draft: Draft,
    scored: ModelOutput,
    verdict: Verdict,
    stop_ids: tuple[int, ...],
    failed: Array,
) -> DecodeState:
    """Appends the accepted tokens and the next one, and records the call.

    Rows that `failed` [B] have no next token, since the target's logits for it are not finite. They
    end after the accepted tokens.
    """
    accepted = verdict.num_accepted
    width = draft.tokens.shape[1]
    index = jnp.arange(width + 1)[None]
    emitted = jnp.pad(draft.tokens, ((0, 0), (0, 1)))
    emitted = jnp.where(index < accepted[:, None], emitted, verdict.next_token[:, None])
    # A draft is cut after its first stop id, so an accepted one is the last accepted token.
    last = jnp.take_along_axis(emitted, jnp.maximum(accepted - 1, 0)[:, None], axis=1)[:, 0]
    ended_in_draft = state.active & (accepted > 0) & ends_text(last, stop_ids)
    failed &= state.active & ~ended_in_draft
    count = jnp.where(state.active, accepted + 1 - (ended_in_draft | failed), 0)
    log_probs = jax.nn.log_softmax(scored.logits, axis=-1)
    log_probs = jnp.take_along_axis(log_probs, emitted[:, :, None], axis=2)[:, :, 0]
    length = state.length + count
    ended = ended_in_draft | failed | ends_text(verdict.next_token, stop_ids)
    return state.replace(
        tokens=_append(state.tokens, emitted, state.length, count),
        log_probs=_append(state.log_probs, log_probs, state.length - 1, count),
        length=length,
        active=state.active & ~ended & (length < state.tokens.shape[1]),
        hidden=_with_states(state.hidden, scored.hidden, state.length),
        trace=_recorded(state, draft, scored.depth, accepted, ended_in_draft, failed),
    )


def _recorded(
    state: DecodeState,
    draft: Draft,
    depth: Array | None,
    accepted: Array,
    ended_in_draft: Array,
    failed: Array,
) -> Trace:
    """Returns the trace with one more call."""
    assert draft.broken is not None  # `trim` has set it
    trace = state.trace
    columns = jnp.arange(trace.drafted.shape[1])[None]
    column = state.active[:, None] & (columns == trace.calls[:, None])
    room = trace.proposed.shape[2] - draft.tokens.shape[1]
    proposed = jnp.pad(draft.tokens, ((0, 0), (0, room)))
    source = trace.source
    if source is not None and draft.source is not None:
        source = jnp.where(column, draft.source[:, None], source)
    layers = trace.depth
    if layers is not None and depth is not None:
        layers = jnp.where(column, jnp.max(depth, axis=1)[:, None], layers)
    return Trace(
        proposed=jnp.where(column[:, :, None], proposed[:, None], trace.proposed),
        drafted=jnp.where(column, draft.length[:, None], trace.drafted),
        accepted=jnp.where(column, accepted[:, None], trace.accepted),
        calls=trace.calls + state.active,
        ended_in_draft=trace.ended_in_draft | ended_in_draft,
        steps=trace.steps + 1,
        source=source,
        depth=layers,
        broken_drafts=trace.broken_drafts + (state.active & draft.broken),
        failed=trace.failed | failed,
    )


def ends_text(tokens: Array, stop_ids: tuple[int, ...]) -> Array:
    """Returns which tokens are stop ids, bool of the same shape."""
    matches = (tokens == token for token in stop_ids)
    return functools.reduce(operator.or_, matches) if stop_ids else jnp.zeros(tokens.shape, bool)


def _append(buffer: Array, block: Array, start: Array, count: Array) -> Array:
    """Writes buffer[b, start[b]:start[b]+count[b]] = block[b, :count[b]], without a scatter."""
    offset = jnp.arange(buffer.shape[1])[None] - start[:, None]
    moved = jnp.take_along_axis(block, jnp.clip(offset, 0, block.shape[1] - 1), axis=1)
    return jnp.where((offset >= 0) & (offset < count[:, None]), moved, buffer)


def output(state: DecodeState) -> DecodeOutput:
    """Returns the texts that have been decoded so far.

    Args:
      state: the state of the loop.
    """
    return DecodeOutput(state.tokens[:, 1:], state.length - 1, state.log_probs, state.trace)


def check_inputs(
    inputs: PyTree, active: Array | None, prefix: Array | None, target: Target, max_length: int
) -> None:
    """Raises ValueError, before anything is compiled, for inputs or a prefix of a wrong shape."""
    rows = rows_of(inputs)
    if active is not None and (active.shape != (rows,) or active.dtype != bool):
        raise ValueError(f"active is {active.dtype}{list(active.shape)}; give bool [{rows}]")
    if all(map(is_known, jax.tree.leaves(inputs))):
        target.check_inputs(inputs.inputs if isinstance(inputs, Revised) else inputs)
    if prefix is None:
        return
    longest, room = 0, max_length
    kind = f"prefix is {prefix.dtype}{list(prefix.shape)}"
    kind += f"; give int32 [{rows}, at most max_length {room}]"
    if prefix.ndim != 2 or prefix.shape[0] != rows or prefix.dtype != jnp.int32:
        raise ValueError(kind)
    if not isinstance(prefix, Tracer):  # whose values are not known yet
        real = jax.device_get(prefix) != target.pad_id
        longest = int(np.max(np.where(real, np.arange(1, prefix.shape[1] + 1), 0), initial=0))
    if longest > room:
        raise ValueError(f"the prefix has {longest} tokens but outputs hold {room}: {kind}")
    if not 1 <= prefix.shape[1] <= room:
        raise ValueError(kind)
    check_prefix(longest, room)


class PrefixError(ValueError):
    """A prefix leaves no room in an output."""


def check_prefix(tokens: int, max_length: int) -> None:
    """Raises PrefixError if a prefix of this many tokens leaves no room in an output.

    Args:
      tokens: the length of the prefix.
      max_length: N, the longest output in tokens.
    """
    if tokens < max_length:
        return
    if tokens > max_length:
        what = f"the prefix has {tokens} tokens but outputs hold {max_length}"
    else:
        what = f"the prefix has {tokens} tokens, which leaves no room in outputs of {max_length}"
    raise PrefixError(f"{what}; give a shorter prefix, or raise max_length")


def check_capacity(state: DecodeState, plan: Plan) -> None:
    """Raises ValueError for a state whose sizes are not those of the plan.

    Without this check, a write beyond the end of a cache would be shifted silently.
    """
    max_length, drafted = state.tokens.shape[1] - 1, plan.nodes_of(plan.longest_draft)
    if max_length == plan.max_length and state.cache.capacity == plan.capacity:
        return
    raise ValueError(
        f"the target's cache holds {state.cache.capacity} positions but max_length {max_length} "
        f"and the schedule's longest draft {drafted} need "
        f"{max_length + drafted}; use the state that prefill made with this plan"
    )
