"""The part of an iteration that differs if a draft has several paths or is a tree."""

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
    """Cuts each path of a draft to what may be verified, by the rules of `states.trim`.

    An empty node of a tree does not make the draft broken.
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
    """Returns the accepted path as a draft of one path, its indices, and the verdict.

    The indices [B, 1 + levels] are those in the target call, the pending token's first. A node
    after a token without `finite` [B, 1 + T] logits is not verified.
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
    """Returns the output of a call at the indices `path` [B, T] only."""
    index = path[:, :, None]
    return ModelOutput(
        *(jnp.take_along_axis(x, index, axis=1) for x in (output.logits, output.hidden))
    )
