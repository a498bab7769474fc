"""The part of an iteration that differs if a draft has several paths, or is a tree."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specdec.decoding import states
from specdec.plan import Plan
from specdec.types import Array, Draft, ModelOutput, Noise, Scores, Verdict
from specdec.verifiers import decide
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


def chosen(
    keys: Noise, draft: Draft, scores: Scores, finite: Array, plan: Plan
) -> tuple[Draft, Array, Verdict]:
    """Returns the path that is kept as a draft of one text, its tokens' places, and the verdict.

    The places [B, 1 + depths] are those in the block of the target call, with that of the pending
    token before them. A node after a token without `finite` [B, 1 + T] logits is not verified.
    """
    allowed = draft.tree.of_parents(finite[:, 1:], finite[:, 0])
    draft = draft.replace(nodes=draft.tree.restricted(allowed))
    choice = jax.vmap(functools.partial(decide.choose, plan.verifier))(keys, draft, scores)
    tokens = jnp.take_along_axis(draft.tokens, choice.nodes, axis=1)
    text = Draft(tokens, None, choice.length, broken=draft.broken)
    path = jnp.pad(choice.nodes + 1, ((0, 0), (1, 0)))
    verdict = Verdict(choice.num_accepted, choice.next_token)
    return states.shortened(text, choice.length), path, verdict


def along(output: ModelOutput, path: Array) -> ModelOutput:
    """Returns the output of a call for the tokens of a path [B, T]."""
    index = path[:, :, None]
    return ModelOutput(
        *(jnp.take_along_axis(x, index, axis=1) for x in (output.logits, output.hidden))
    )
