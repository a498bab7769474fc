"""The part of an iteration that differs if a draft has several paths, or is a tree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specdec.decoding import states
from specdec.models.contract.model import decode_block
from specdec.plan import Plan
from specdec.sampling import looks_back, standardised
from specdec.types import (
    Array,
    DecodeState,
    Draft,
    History,
    ModelOutput,
    Noise,
    Params,
    Scores,
    Verdict,
)
from specdec.verifiers import rounds
from specdec.verifiers.decide import usable_tokens


def trim(draft: Draft, want: Array, vocab_size: int, stop_ids: tuple[int, ...]) -> Draft:
    """Cuts each path to what may be verified, as `states.trim` does with a draft that is one text.

    A place of a tree that has no token is no broken draft.
    """
    nodes, tokens = draft.tree, draft.tokens
    usable = (tokens >= 0) & (tokens < vocab_size) & usable_tokens(draft)
    none = jnp.zeros(len(tokens), bool)
    wanted = nodes.depths[None] < jnp.minimum(draft.length, want)[:, None]
    wanted &= ~nodes.of_parents(states.ends_text(tokens, stop_ids), none)
    nodes = nodes.restricted(usable & wanted)
    follows = wanted & nodes.of_parents(nodes.valid, ~none)
    broken = jnp.any(follows & ~usable & (tokens != -1), axis=1)
    tokens = jnp.where(nodes.valid, tokens, 0)
    return draft.replace(tokens=tokens, nodes=nodes, broken=broken)


def decide(
    params: Params, keys: Noise, draft: Draft, state: DecodeState, plan: Plan
) -> DecodeState:
    """Runs the target call on the nodes of a draft, and commits the path that is kept."""
    committed = state.length - 1  # [B] n
    target = plan.target
    with jax.named_scope("verify"):
        pending = jnp.take_along_axis(state.tokens, committed[:, None], axis=1)
        block = jnp.concatenate([pending, draft.tokens], axis=1)
        seen = draft.tree.ancestors()
        scored, cache = decode_block(target, params["target"], block, state.cache, ancestors=seen)
    with jax.named_scope("accept"):
        scores = _opinion(scored.logits, draft, state, plan)
        # Behind a token that the target cannot go on from nothing is verified, see `loop`.
        finite = states.finite_rows(scored.logits, scores)
        allowed = draft.tree.of_parents(finite[:, 1:], finite[:, 0])
        draft = draft.replace(nodes=draft.tree.restricted(allowed))
        choose = functools.partial(rounds.choose, plan.verifier)
        found = jax.vmap(choose)(keys, draft, scores)
        tokens = jnp.take_along_axis(draft.tokens, found.nodes, axis=1)
        text = Draft(tokens, None, found.length, broken=draft.broken)
        text = states.shortened(text, found.length)
        verdict = Verdict(found.num_accepted, found.next_token)
        schedule_state = plan.schedule.update(state.schedule, text, verdict)
        path = jnp.pad(found.nodes + 1, ((0, 0), (1, 0)))
        kept = found.num_accepted[:, None]
        failed = ~jnp.take_along_axis(finite, jnp.take_along_axis(path, kept, axis=1), axis=1)[:, 0]
        of_path = ModelOutput(*(_rows(x, path) for x in (scored.logits, scored.hidden)))
        fed = state.cache.length
        state = states.commit(state, text, of_path, verdict, plan.stop_ids, failed)
        cache = cache.keep(fed + 1, found.nodes, draft.tokens.shape[1])
        cache = cache.rewind(jnp.minimum(state.length - 1, plan.max_length - 1))
    return state.replace(cache=cache, schedule=schedule_state)


def _rows(array: Array, index: Array) -> Array:
    """Returns [B, T, ...], the given rows [B, T] of an array [B, R, ...]."""
    return jnp.take_along_axis(array, index[:, :, None], axis=1)


def _opinion(logits: Array, draft: Draft, state: DecodeState, plan: Plan) -> Scores:
    """Returns the target's scores after the pending token and each node, [B, 1+T, V]."""
    nodes = draft.tree
    depths = jnp.pad(nodes.depths + 1, (1, 0))
    positions = state.length[:, None] - 1 + depths[None]
    history = None
    if looks_back(plan.sampling):
        history = _history(draft, depths, state, plan)
        logits = logits.reshape(-1, logits.shape[-1])
    left, probs = standardised(plan.sampling, logits, positions.reshape(logits.shape[:-1]), history)
    shape = (*positions.shape, -1)
    greedy = plan.sampling.greedy
    return Scores(left.reshape(shape), probs.reshape(shape), greedy, processed=history is not None)


def _history(draft: Draft, depths: Array, state: DecodeState, plan: Plan) -> History:
    """Returns the text before the token after each of the call's tokens, [B * (1+T)]."""
    nodes, total = draft.tree, len(depths)
    tokens = jnp.where(nodes.lead(), draft.tokens[:, None], 0)
    chains = jnp.sum(tokens.reshape(*tokens.shape[:2], -1, nodes.width), axis=3)
    chains = jnp.pad(chains, ((0, 0), (1, 0), (0, 0))).astype(jnp.int32)
    repeated = functools.partial(jnp.repeat, repeats=total, axis=0)
    prompt = jax.tree.map(repeated, plan.target.prompt(state.inputs))
    text = History(repeated(state.tokens), repeated(state.length), plan.stop_ids).after(prompt)
    ahead = text.ahead(chains.reshape(-1, chains.shape[2]))
    return ahead.replace(length=text.length + jnp.tile(depths, len(state.length)))
