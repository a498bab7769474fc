"""The decoding loop: the functions that run it, and one iteration."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specdec import verifiers
from specdec.decoding import several_paths, states
from specdec.decoding.finite import check_finite
from specdec.decoding.keys import check_keys, noise, purpose_keys
from specdec.decoding.rows import repeated, replaced
from specdec.models.contract import loops
from specdec.models.contract.model import Target, decode_block, finish
from specdec.plan import Alone, Plan
from specdec.types import (
    Array,
    DecodeOutput,
    DecodeState,
    Draft,
    Noise,
    Params,
    PyTree,
    Request,
    Revised,
    SamplingRule,
    Stop,
)
from specdec.verifiers.decide import leading


def decode(
    params: Params,
    keys: Array,
    inputs: PyTree,
    plan: Plan,
    *,
    active: Array | None = None,
    prefix: Array | None = None,
) -> DecodeOutput:
    """Decodes a batch in one compiled program and one dispatch.

    With an exact plan, the output has the distribution of `autoregressive_decode` with the same
    target and sampling. The tokens are the same if greedy. With `Coupled` they are the same for the
    same keys. A row does not depend on its neighbours.

    Args:
      params: the parameters of target, drafter and schedule.
      keys: [B] typed threefry keys, one per row (`row_keys`).
      inputs: the target's inputs, a pytree whose first leaf has the rows: [B, S] int32 for T5.
        Inputs of another shape compile another program, so pad them to few lengths (`tasks` does).
        `Revised` adds the previous outputs, for a drafter that reads them.
      plan: target, drafter, verifier, schedule and sampling; static.
      active: [B] bool, the rows to decode; other rows stay empty. None decodes all rows but those
        that are only padding.
      prefix: [B, P] int32, the tokens that each output begins with, padded with the target's
        `pad_id`. Each row has fewer than N of them and no stop id. A prefix costs one target call,
        which is not in the trace.

    Returns:
      The texts with their log-probabilities and a trace of the target calls.

    Raises:
      ValueError: before anything is compiled, for keys or shapes that cannot work.
      NonFiniteLogits: the target's logits are NaN or infinite for a token of a text. While this
        function is traced there is no error; `Trace.failed` marks the rows, which end there.

    Example:

    >>> import specdec
    >>> from specdec.drafters import PromptLookup
    >>> from specdec.sampling import Greedy
    >>> from specdec.schedules import Fixed
    >>> from specdec.testing import TableTarget
    >>> from specdec.verifiers import GreedyMatch
    >>> target = TableTarget(vocab_size=7)
    >>> plan = Plan(target, PromptLookup(), GreedyMatch(), Fixed(gamma=3), Greedy(), max_length=12)
    >>> params = Params(target.init(jax.random.key(0)))
    >>> keys, inputs = specdec.row_keys(0, jnp.arange(1)), jnp.array([[3, 5, 2, 1]])  # one text
    >>> output = decode(params, keys, inputs, plan)
    >>> alone = decode(params, keys, inputs, plan.alone())
    >>> bool(jnp.all(output.tokens == alone.tokens))
    True
    """
    rows = states.rows_of(inputs)
    check_keys(keys, rows)
    states.check_inputs(inputs, active, prefix, plan.target, plan.max_length)
    output = _decode(params, keys, inputs, plan=plan, active=active, prefix=prefix)
    check_finite(output, plan.target)
    return output


def autoregressive_decode(
    target_params: PyTree,
    keys: Array,
    inputs: PyTree,
    *,
    target: Target,
    sampling: SamplingRule,
    max_length: int,
    eos_id: int | tuple[int, ...] | None = None,
    width: int = 1,
    active: Array | None = None,
    prefix: Array | None = None,
) -> DecodeOutput:
    """Decodes with the target alone, one token per call, through the same loop: the baseline.

    Token t is argmax(log p + gumbel(T(t))). With width > 1, each call is as wide as one that
    verifies width - 1 draft tokens, and only its first position counts. Its logits then come from
    the same compiled shape. This matters in bfloat16, where another width rounds differently.

    Args:
      target_params: the target's parameters.
      keys: as for `decode`.
      inputs: as for `decode`.
      target: the model.
      sampling: turns logits into the distribution that tokens are drawn from.
      max_length: N, the longest output in tokens.
      eos_id: the id that ends a row, or several ids; None for the target's own.
      width: tokens in each target call.
      active: as for `decode`.
      prefix: as for `decode`.

    Returns:
      The texts, as from `decode`.
    """
    stop_ids: Any = (eos_id,) if isinstance(eos_id, int) else eos_id
    alone = Alone(width)
    plan = Plan(target, alone, alone, alone, sampling, max_length, stop_ids)
    return decode(Params(target_params), keys, inputs, plan, active=active, prefix=prefix)


@functools.partial(jax.jit, static_argnames="plan")
def _decode(params, keys, inputs, *, plan: Plan, active, prefix) -> DecodeOutput:
    state = prefill(params, keys, inputs, plan, active=active, prefix=prefix)
    return _finished(params, state, plan)


def _finished(params: Params, state: DecodeState, plan: Plan) -> DecodeOutput:
    """Returns the output after the last iteration."""
    return states.output(_run(params, state, plan))


def _run(
    params: Params, state: DecodeState, plan: Plan, unfinished: Array | None = None
) -> DecodeState:
    """Runs until every row is finished; with `unfinished`, until at most that many are not."""
    advance = functools.partial(step, params, plan=plan)

    def goes_on(state: DecodeState) -> Array:
        return jnp.any(state.active) if unfinished is None else jnp.sum(state.active) > unfinished

    return loops.while_loop(goes_on, advance, state)


def sample(params: Params, keys: Array, state: DecodeState, plan: Plan) -> DecodeOutput:
    """Decodes one more sample, or several, of the texts that `prefill` has read.

    Args:
      params: as for `decode`.
      keys: [B * T], the keys of T samples for each of B texts.
      state: the result of `prefill` for the B texts, with any keys.
      plan: as for `decode`.

    Returns:
      The result of `decode` with these keys, in their order.

    Raises:
      ValueError: a component's state has no axis of rows, and T is not 1.
    """
    # Shared cached keys are multiplied by more tokens at a time, which may change bits.
    state = repeated(state, len(keys) // len(state.length), shared=not plan.same_bits)
    return _finished(params, state.replace(keys=jax.vmap(purpose_keys)(keys)), plan)


def refill(
    params: Params, state: DecodeState, new: DecodeState, rows: Array, unfinished: Array, plan: Plan
) -> DecodeState:
    """Gives rows of a running batch their next texts, and decodes until others are finished.

    Args:
      params: as for `decode`.
      state: the state of B rows; `vacant` makes the first one.
      new: the result of `prefill` for R texts.
      rows: [R] int32, the rows of `state` that get these texts.
      unfinished: [] int32; the loop stops when at most this number of rows is unfinished.
      plan: as for `decode`.

    Returns:
      The state of the B rows.

    Raises:
      ValueError: a component's state has no axis of rows.
    """
    with jax.named_scope("refill"):
        state = replaced(state, new, rows)
    return _run(params, state, plan, unfinished)


@functools.partial(jax.jit, static_argnames="plan")
def prefill(
    params: Params,
    keys: Array,
    inputs: PyTree,
    plan: Plan,
    *,
    active: Array | None = None,
    prefix: Array | None = None,
) -> DecodeState:
    """Reads the inputs and allocates the state that `step` updates.

    Args:
      params: as for `decode`, like the other arguments.
      keys: [B].
      inputs: the target's inputs.
      plan: static.
      active: [B] bool, or None.
      prefix: [B, P] int32, or None.

    Returns:
      The state before the first iteration.
    """
    inputs, previous = inputs if isinstance(inputs, Revised) else (inputs, None)
    state = states.empty(params, keys, inputs, plan, active)
    if prefix is not None:
        state = states.begin_with(prefix, state, plan.target, params["target"])
    context = plan.context(state).replace(previous=previous)
    state = state.replace(drafter=plan.drafter.init(params, context))
    return states.divided_by_rows(state, len(state.length))


@functools.partial(jax.jit, static_argnames="plan")
def step(params: Params, state: DecodeState, plan: Plan) -> DecodeState:
    """Runs one iteration for every active row: draft, one target call, verdict, commit.

    With several buckets, the draft buffer has the width of the longest one. The target call has
    that of the smallest bucket that holds all drafts. Each width is the body of a while loop of at
    most one trip, because a `lax.switch` around a cache copies all its arrays.

    Args:
      params: the parameters of target, drafter and schedule.
      state: the state that `prefill` or the last `step` returned.
      plan: static.

    Returns:
      The state after the iteration.
    """
    states.check_capacity(state, plan)
    drafted = plan.nodes_of(plan.longest_draft)
    keys_of = functools.partial(noise, width=drafted, shared=plan.shared_noise)
    keys = jax.vmap(keys_of)(state.keys, state.length - 1)
    with jax.named_scope("draft"):
        draft, state = propose(params, keys, state, plan)

    def decide(state: DecodeState, width: int) -> DecodeState:
        return _decide(params, _cut(keys, width), states.cut(draft, width), state, plan)

    if len(plan.buckets) == 1:
        return decide(state, drafted)
    choice = jnp.sum(jnp.array(plan.buckets, jnp.int32) < jnp.max(draft.length))
    for i, width in enumerate(plan.buckets):
        state = loops.at_most_once(choice == i, functools.partial(decide, width=width), state)
    return state


def propose(
    params: Params, keys: Noise, state: DecodeState, plan: Plan
) -> tuple[Draft, DecodeState]:
    """Returns the draft, cut to what may be verified, and the state with the drafter's update.

    Args:
      params: as for `step`.
      keys: the keys of each row, for `plan.nodes_of(plan.longest_draft)` draft tokens.
      state: the state before an iteration.
      plan: static.
    """
    want = _wanted(state, plan)
    rows, width = keys.draft.shape
    if not width:
        none = jnp.zeros([rows, 0], jnp.int32)
        return Draft(none, None, want, broken=jnp.zeros([rows], bool)), state
    context = plan.context(state)
    stop = _stop(params, state.schedule, plan)

    def ask(drafter_state: PyTree, cache: PyTree) -> tuple[Draft, PyTree, PyTree]:
        request = Request(context.replace(cache=cache), keys.draft, want, stop)
        draft, drafter_state = plan.drafter.propose(params, request, drafter_state)
        if draft.resume is None:
            return draft, drafter_state, cache
        # The state has the target's cache, so the draft does not.
        begun = draft.resume.replace(cache=None)
        return draft.replace(resume=begun), drafter_state, draft.resume.cache

    if plan.buckets[0]:
        draft, drafter_state, cache = ask(state.drafter, state.cache)
    else:  # no model is called if no row wants tokens, again without copies
        shapes = jax.eval_shape(ask, state.drafter, state.cache)[0]
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        begun = none, state.drafter, state.cache
        asked = loops.at_most_once(jnp.any(want > 0), lambda loop: ask(*loop[1:]), begun)
        draft, drafter_state, cache = asked
    trim = states.trim if draft.nodes is None else several_paths.trim
    draft = trim(draft, want, state.vocab_size, plan.stop_ids)
    return draft, state.replace(drafter=drafter_state, cache=cache)


def _wanted(state: DecodeState, plan: Plan) -> Array:
    """Returns [B], how many tokens to draft; the target's own token must fit as well."""
    room = plan.max_length - state.length
    want = jnp.clip(plan.schedule.want(state.schedule), 0, jnp.minimum(room, plan.longest_draft))
    return jnp.where(state.active, want, 0)


def _stop(params: Params, state: PyTree, plan: Plan) -> Stop | None:
    """Returns the rule that ends drafting early, or None if lengths are fixed.

    Drafting ends at the end of the text, and where the schedule's own rule stops. With fixed
    lengths, drafting needs no loop of unknown length.
    """
    if not plan.lengths_vary:
        return None
    schedule = plan.schedule

    def ask(carry: PyTree, index: Array, probs: Array, tokens: Array) -> tuple[PyTree, Array]:
        ended = states.ends_text(tokens, plan.stop_ids)
        if not schedule.stops_within:
            return carry, ended
        carry, stopped = schedule.stop(params, carry, index, probs, tokens)
        return carry, ended | stopped

    return Stop(state, ask, schedule.cut if schedule.cuts else None)


def _decide(
    params: Params, keys: Noise, draft: Draft, state: DecodeState, plan: Plan
) -> DecodeState:
    """Runs the target call on a draft of any width, and commits the accepted path."""
    committed, nodes, path = state.length - 1, draft.nodes, None  # [B] n
    with jax.named_scope("verify"):
        pending = jnp.take_along_axis(state.tokens, committed[:, None], axis=1)
        block, of_target = jnp.concatenate([pending, draft.tokens], axis=1), params["target"]
        if nodes is not None:
            seen = nodes.ancestors()
            scored, cache = decode_block(plan.target, of_target, block, state.cache, ancestors=seen)
        elif draft.resume is None:
            scored, cache = plan.target.decode(of_target, block, state.cache)
        else:
            resume = draft.resume.replace(cache=state.cache)
            scored, cache = finish(plan.target, of_target, block, resume, draft.length)
            draft = draft.replace(resume=None)
    with jax.named_scope("accept"):
        text = state.tokens, state.length, state.inputs
        scores = states.opinion(scored.logits, draft, *text, plan)
        # Nothing is verified after a token with non-finite logits. This is exact: it stops after
        # a token that was seen. Only a text that reaches that token fails.
        finite = states.finite_rows(scored.logits, scores)
        if nodes is None:
            draft = states.shortened(draft, jnp.minimum(draft.length, leading(finite)))
            decide = functools.partial(verifiers.verdict, plan.verifier)
            verdict = jax.vmap(decide)(keys, draft, scores)
        else:
            draft, path, verdict = several_paths.chosen(keys, draft, scores, finite, plan)
            finite = jnp.take_along_axis(finite, path, axis=1)
            scored = several_paths.along(scored, path)
        schedule_state = plan.schedule.update(state.schedule, draft, verdict)
        accepted = verdict.num_accepted[:, None]
        failed = ~jnp.take_along_axis(finite, accepted, axis=1)[:, 0]
        fed = state.cache.length
        state = states.commit(state, draft, scored, verdict, plan.stop_ids, failed)
        if path is not None:
            cache = cache.keep(fed + 1, path[:, 1:] - 1, block.shape[1] - 1)
        # Rollback. (A full row is still fed while other rows continue: its writes must fit.)
        cache = cache.rewind(jnp.minimum(state.length - 1, plan.max_length - 1))
    return state.replace(cache=cache, schedule=schedule_state)


def _cut(keys: Noise, width: int) -> Noise:
    """Returns the keys of a draft of `width` tokens.

    A key depends on its position, not on the width.
    """
    return Noise(keys.draft[:, :width], keys.accept[:, :width], keys.correct[:, : width + 1])
