"""The loop itself: who runs it, and one iteration of it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specdec import verifiers
from specdec.decoding import states
from specdec.decoding.keys import check_keys, noise
from specdec.plan import Alone, Plan
from specdec.types import (
    Array,
    DecodeOutput,
    DecodeState,
    Draft,
    Params,
    PyTree,
    SamplingRule,
    Scores,
    Stop,
    Target,
)


def decode(
    params: Params,
    keys: Array,
    inputs: PyTree,
    plan: Plan,
    *,
    active: Array | None = None,
    prefix: Array | None = None,
) -> DecodeOutput:
    """Decodes a batch; one compiled program, one dispatch.

    With an exact plan the output has the law of `autoregressive_decode` with the same target and
    sampling: the same tokens when greedy, the same distribution otherwise, and with `Coupled` the
    same tokens for the same keys. A row does not depend on its neighbours.

    Args:
      params: of target, drafter and schedule.
      keys: [B] typed threefry keys, one per row (`row_keys`).
      inputs: what the target reads, a pytree whose first leaf has the rows: [B, S] int32 for T5.
        Inputs of another shape compile another program: pad to few lengths (`tasks` does).
      plan: what is decoded with what, static.
      active: [B] bool, rows to decode; the others stay empty. None: what the target says of the
        inputs, which for a row of padding only is no.
      prefix: [B, P] int32, the tokens each output is to begin with, without a stop id and at most
        N, filled up with the target's `pad_id`. They cost one target call, and nothing of them is
        in the trace.

    Raises:
      ValueError: before anything is compiled, for keys or shapes that cannot work.
    """
    rows = states.rows_of(inputs)
    check_keys(keys, rows)
    states.check_inputs(inputs, active, prefix, plan.max_length)
    return _decode(params, keys, inputs, plan=plan, active=active, prefix=prefix)


def autoregressive_decode(
    target_params: PyTree,
    keys: Array,
    inputs: PyTree,
    *,
    target: Target,
    sampling: SamplingRule,
    max_length: int,
    eos_id: int | tuple[int, ...] = 1,
    width: int = 1,
    active: Array | None = None,
    prefix: Array | None = None,
) -> DecodeOutput:
    """The baseline: the target alone, one token per call, through the same loop.

    Token t is argmax(log p + gumbel(T(t))). With width > 1 each call is as wide as a verify call of
    width - 1 draft tokens, of which only the first position counts: the logits are then those of
    the same compiled shape, also in bfloat16, where another width rounds differently.

    eos_id: what ends a row, several ids perhaps. The other arguments are those of `decode`.
    """
    stop_ids = (eos_id,) if isinstance(eos_id, int) else eos_id
    alone: Any = Alone(width)
    plan = Plan(target, alone, alone, alone, sampling, max_length, stop_ids)
    return decode(Params(target_params), keys, inputs, plan, active=active, prefix=prefix)


@functools.partial(jax.jit, static_argnames="plan")
def _decode(params, keys, inputs, *, plan: Plan, active, prefix) -> DecodeOutput:
    state = prefill(params, keys, inputs, plan, active=active, prefix=prefix)
    advance = functools.partial(step, params, plan=plan)
    state = jax.lax.while_loop(lambda state: jnp.any(state.active), advance, state)
    return states.output(state)


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
    """Reads the inputs and lays out everything `step` updates; arguments as for `decode`."""
    state = states.empty(params, keys, inputs, plan, active)
    if prefix is not None:
        state = states.begin_with(prefix, state, plan.target, params.target)
    state = state.replace(drafter=plan.drafter.init(params, state.context()))
    return states.divided_by_rows(state, len(state.length))


@functools.partial(jax.jit, static_argnames="plan")
def step(params: Params, state: DecodeState, plan: Plan) -> DecodeState:
    """One iteration for every active row: draft, one target call, verdict, commit.

    With several buckets the draft buffer and the target call have the smallest width that holds
    what the rows want. Each width is the body of a while loop of at most one trip, because a
    `lax.switch` around a cache copies every array of it.
    """
    states.check_capacity(state, plan)
    want = _wanted(state, plan)
    iterate = functools.partial(_iterate, params, want=want, plan=plan)
    if len(plan.buckets) == 1:
        return iterate(state, width=plan.longest_draft)
    widths = jnp.array(plan.buckets, jnp.int32)
    choice = jnp.sum(widths < jnp.max(want))
    for i, width in enumerate(plan.buckets):
        _, state = jax.lax.while_loop(
            lambda loop: loop[0],
            lambda loop, width=width: (jnp.bool_(False), iterate(loop[1], width=width)),
            (choice == i, state),
        )
    return state


def _iterate(params: Params, state: DecodeState, *, width: int, want: Array, plan: Plan):
    """The body of `step` with a draft buffer of `width` tokens."""
    committed = state.length - 1  # [B] n
    keys_of = functools.partial(noise, width=width, shared=plan.shared_noise)
    keys = jax.vmap(keys_of)(state.keys, committed)

    with jax.named_scope("draft"):
        draft, drafter_state = _propose(params, keys.draft, state, want, plan)
    with jax.named_scope("verify"):
        pending = jnp.take_along_axis(state.tokens, committed[:, None], axis=1)
        block = jnp.concatenate([pending, draft.tokens], axis=1)
        scored, cache = plan.target.decode(params.target, block, state.cache)
    with jax.named_scope("accept"):
        positions = committed[:, None] + jnp.arange(width + 1)[None]
        probs = plan.sampling.probabilities(scored.logits, positions)
        scores = Scores(scored.logits, probs, plan.sampling.greedy)
        decide = functools.partial(verifiers.verdict, plan.verifier)
        verdict = jax.vmap(decide)(keys, draft, scores)
        schedule_state = plan.schedule.update(state.schedule, draft, verdict)
        state = states.commit(state, draft, scored, verdict, plan.stop_ids)
        # Rollback. (A row that is full keeps being fed while others go on: its writes must fit.)
        cache = cache.rewind(jnp.minimum(state.length - 1, plan.max_length - 1))
    return state.replace(cache=cache, drafter=drafter_state, schedule=schedule_state)


def _wanted(state: DecodeState, plan: Plan) -> Array:
    """[B] how many tokens to draft; the target's own token always fits as well."""
    room = plan.max_length - state.length
    want = jnp.clip(plan.schedule.want(state.schedule), 0, jnp.minimum(room, plan.longest_draft))
    return jnp.where(state.active, want, 0)


def _propose(
    params: Params, keys: Array, state: DecodeState, want: Array, plan: Plan
) -> tuple[Draft, PyTree]:
    """The draft, cut to what may be verified, and the drafter's new state."""
    rows, width = keys.shape
    if not width:
        return Draft(jnp.zeros([rows, 0], jnp.int32), None, want), state.drafter
    stop = _stop(plan.schedule, params.schedule, state.schedule)
    context = state.context(plan.shared_noise, plan.reads_beliefs)
    draft, drafter_state = plan.drafter.propose(params, keys, context, state.drafter, want, stop)
    return states.trim(draft, want, state.vocab_size, plan.stop_ids), drafter_state


def _stop(schedule: Any, params: PyTree, state: PyTree) -> Stop | None:
    ask = getattr(schedule, "stop", None)
    return None if ask is None else Stop(state, functools.partial(ask, params))
