"""The check of a drafter's state."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec.certificate.outcome import Check, Power
from specdec.certificate.subject import Subject
from specdec.decoding import prefill, step
from specdec.decoding.program import Program
from specdec.models.contract import loops
from specdec.plan import Plan
from specdec.testing import Skipping
from specdec.types import Array, DecodeState, Draft, Params, Request

TEXTS = 8
DIFFERENT = 1e-4  # of the drafts, and one is always allowed: a near-tie of another width's rounding
BFLOAT16_DIFFERENT = 0.1
WANTED = 0.3  # the share of drafts that may differ unseen


def afresh(subject: Subject) -> Check:
    """Checks that the drafter proposes the same with a new state, made from the committed text."""
    # Then nothing is missing in its caches, and no pointer is lost. The drafter is skipped at
    # random, so that it must catch up. One that `adapts` depends on more than the text.
    if subject.plan.drafter.adapts:
        note = f"{type(subject.plan.drafter).__name__} adapts, so that no draft need be the same"
        return Check("afresh", {"drafts": 0, "different": 0}, {}, note)
    plan = subject.variant(subject.greedy)
    count = Program(functools.partial(_count, plan=plan), mesh=subject.mesh)
    counts = [
        count.fetch(subject.params, *batch, everywhere=True)[0] for batch in subject.batches(TEXTS)
    ]
    drafts, different = np.sum(counts, axis=0).tolist()
    allowed = DIFFERENT if subject.float32 else BFLOAT16_DIFFERENT
    limit = max(1, int(allowed * drafts))
    return Check(
        "afresh",
        {"drafts": drafts, "different": different},
        {"different": ("<=", limit)},
        f"{different} of {drafts} drafts of {type(plan.drafter).__name__} differ from those of a "
        f"state made anew (threshold {limit}, for a near-tie)",
        power=Power.of_cases(
            drafts, subject.count, WANTED, "a difference in {:.0%} of the drafts", allowed
        ),
    )


def _count(params: Params, keys: Array, inputs: Array, *, plan: Plan) -> tuple[Array, Array]:
    """Returns the number of drafts, and how many differ."""
    drafter, skipping = plan.drafter, dataclasses.replace(plan, drafter=Skipping(plan.drafter))

    def again(loop: tuple[DecodeState, Array, Array]) -> tuple[DecodeState, Array, Array]:
        state, drafts, different = loop
        context = plan.context(state)
        room = jnp.minimum(plan.max_length - state.length, plan.longest_draft)
        want = jnp.where(state.active, room, 0)
        request = Request(context, _keys(state, plan), want)
        carried, _ = drafter.propose(params, request, state.drafter)
        anew, _ = drafter.propose(params, request, drafter.init(params, context))
        drafts += jnp.sum(want > 0)
        different += jnp.sum((want > 0) & _differ(carried, anew))
        return step(params, state, skipping), drafts, different

    state = prefill(params, keys, inputs, skipping)
    loop = (state, jnp.int32(0), jnp.int32(0))
    return loops.while_loop(lambda loop: jnp.any(loop[0].active), again, loop)[1:]


def _keys(state: DecodeState, plan: Plan) -> Array:
    """Returns [B, K] keys that are not used, because greedy drafters draw nothing."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    drafted = np.arange(plan.nodes_of(plan.longest_draft))
    return jax.vmap(lambda keys: fold(keys[1], drafted))(state.keys)


def _differ(a: Draft, b: Draft) -> Array:
    """Returns [B], whether the drafts differ."""
    index = (jnp.arange(a.tokens.shape[1]) if a.nodes is None else a.nodes.depths)[None]
    tokens = (a.tokens != b.tokens) & (index < jnp.minimum(a.length, b.length)[:, None])
    return (a.length != b.length) | jnp.any(tokens, axis=1)
