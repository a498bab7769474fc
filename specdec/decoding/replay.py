"""The target's and the drafter's probabilities of the tokens of each call, for finished texts."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.decoding import states
from specdec.decoding.keys import noise
from specdec.decoding.loop import prefill
from specdec.models.contract import loops
from specdec.plan import Plan
from specdec.types import Array, DecodeState, Draft, Params, PyTree, Request, Verdict


class Decided(NamedTuple):
    """The fields of a `DecodeOutput` that a replay needs."""

    tokens: Array  # [B, N] int32
    proposed: Array  # [B, N, K] int32, this and the next two as in `Trace`
    drafted: Array  # [B, N] int32
    accepted: Array  # [B, N] int32


class Replay(NamedTuple):
    """Probabilities of the tokens of each call, float32.

    Entries that belong to no token are garbage.

    p and q are under the plan's sampling, given the text and the draft tokens before. q is NaN if
    it is unknown. That is so if the drafter proposes with certainty. It is also so if, called again
    with the same keys, the drafter proposes another token earlier in this draft.
    """

    p: Array  # [B, N, K] the target's, of draft token j
    q: Array  # [B, N, K] the drafter's, of the same token
    softmax: Array  # [B, N, K] the target's, at temperature 1 without filters
    own_p: Array  # [B, N] the target's, of its own token after the accepted ones
    own_q: (
        Array  # [B, N] the drafter's, of the same token; NaN also if the whole draft was accepted
    )


def replay(
    params: Params,
    keys: Array,
    inputs: PyTree,
    decided: Decided,
    *,
    plan: Plan,
    prefix: Array | None = None,
) -> Replay:
    """Repeats the target calls and drafts of decoded texts, and returns the probabilities.

    It costs as many calls as decoding, which therefore need not store probabilities.

    Args:
      params: as for `decode`.
      keys: as for `decode`.
      inputs: as for `decode`.
      decided: the output of `decode`.
      plan: as for `decode`.
      prefix: as for `decode`.

    Returns:
      The probabilities of each call.
    """
    state = prefill(params, keys, inputs, plan, prefix=prefix)
    rows, longest, width = decided.proposed.shape
    drafts, owns = (jnp.zeros(x, jnp.float32) for x in ((rows, longest, width), (rows, longest)))
    recorded = Replay(p=drafts, q=drafts, softmax=drafts, own_p=owns, own_q=owns)

    def again(loop):
        call, state, recorded = loop
        state, probabilities = _call(params, state, call, decided, plan)
        recorded = jax.tree.map(lambda x, new: x.at[:, call].set(new), recorded, probabilities)
        return call + 1, state, recorded

    loop = (jnp.int32(0), state, recorded)
    return loops.while_loop(lambda loop: jnp.any(loop[1].active), again, loop)[2]


def _call(
    params: Params, state: DecodeState, call: Array, decided: Decided, plan: Plan
) -> tuple[DecodeState, Replay]:
    """Repeats one iteration of the loop with a known verdict."""
    tested, length, accepted = (x[:, call] for x in decided[1:])
    committed = state.length - 1
    # The drafter's proposal with the keys of this call, without a stopping rule.
    keys_of = functools.partial(noise, width=plan.longest_draft, shared=plan.shared_noise)
    keys = jax.vmap(keys_of)(state.keys, state.length - 1)
    request = Request(plan.context(state), keys.draft, length)
    asked, drafter = plan.drafter.propose(params, request, state.drafter)

    pending = jnp.take_along_axis(state.tokens, committed[:, None], axis=1)
    block = jnp.concatenate([pending, tested], axis=1)
    scored, cache = plan.target.decode(params["target"], block, state.cache)
    text = state.tokens, state.length, state.inputs
    draft = Draft(tested, None, length, broken=jnp.zeros(length.shape, bool))
    probs = states.opinion(scored.logits, draft, *text, plan).probs

    end = jnp.minimum(committed + accepted, plan.max_length - 1)
    correction = jnp.take_along_axis(decided.tokens, end[:, None], axis=1)
    after = _at(probs, accepted[:, None])
    q, own_q = _drafter_probabilities(asked, tested, length, accepted, correction)
    probabilities = Replay(
        p=_of(probs[:, :-1], tested),
        q=q,
        softmax=_of(jax.nn.softmax(scored.logits[:, :-1], axis=-1), tested),
        own_p=_of(after, correction)[:, 0],
        own_q=own_q,
    )
    verdict = Verdict(accepted, correction[:, 0])
    none = jnp.zeros(length.shape, bool)
    state = states.commit(state, draft, scored, verdict, plan.stop_ids, failed=none)
    cache = cache.rewind(jnp.minimum(state.length - 1, plan.max_length - 1))
    return state.replace(cache=cache, drafter=drafter), probabilities


def _drafter_probabilities(
    asked: Draft, tested: Array, length: Array, accepted: Array, correction: Array
) -> tuple[Array, Array]:
    """Returns q of the draft tokens [B, K], and of the target's token [B] that corrects one."""
    unknown = jnp.full(tested.shape, jnp.nan, jnp.float32)
    if asked.probs is None:
        return unknown, unknown[:, 0]
    # Row j of q is about this draft only if the tokens before j are those that were proposed.
    same = jnp.cumprod(asked.tokens == tested, axis=1)
    known = jnp.pad(same, ((0, 0), (1, 0)), constant_values=1)[:, :-1] > 0
    q = jnp.where(known, _of(asked.probs, tested), unknown)
    last = jnp.minimum(accepted, tested.shape[1] - 1)[:, None]
    corrects = (accepted < length) & jnp.take_along_axis(known, last, axis=1)[:, 0]
    own_q = _of(_at(asked.probs, last), correction)[:, 0]
    return q, jnp.where(corrects, own_q, unknown[:, 0])


def _of(probs: Array, tokens: Array) -> Array:
    """Returns [B, T], the probabilities [B, T, V] of the tokens [B, T]."""
    return jnp.take_along_axis(probs, tokens[:, :, None], axis=2)[:, :, 0]


def _at(probs: Array, row: Array) -> Array:
    """Returns [B, 1, V], the given row [B, 1] of [B, T, V]."""
    return jnp.take_along_axis(probs, row[:, :, None], axis=1)
