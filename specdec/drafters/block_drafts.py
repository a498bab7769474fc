"""What drafters share that propose a block of tokens in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specdec.drafters.draft_loop import Steps
from specdec.drafters.matching import last_tokens
from specdec.types import Array, Context, Request


def mask_ids(vocab_size: int, masks: int, distinct: bool) -> Array:
    """[masks] int32, the last ids of a table: one for each place of a block, or the same one."""
    first = vocab_size - masks if distinct else vocab_size - 1
    return first + jnp.arange(masks, dtype=jnp.int32) * distinct


def visible_in_block(text: Array, size: int, masks: int, cached: bool) -> Array:
    """[B, T, T] bool of a block of text and the masks behind it, T = size + masks.

    text: [B] the tokens, of the `size` there is room for, that are text; nobody sees the others.
    cached: whether text sees the text before it only.
    """
    index = jnp.arange(size + masks)[None]
    seen = ((index >= size) | (index < text[:, None]))[:, None]  # [B, 1, T] by a mask
    if not cached:
        return jnp.broadcast_to(seen, (len(text), size + masks, size + masks))
    return jnp.where((index >= size)[:, :, None], seen, jnp.tri(size + masks, dtype=bool)[None])


def last_state(context: Context) -> Array:
    """[B, 1, D] the target's state that produced the pending token."""
    assert context.hidden is not None, "the drafter says that it reads it"
    return jnp.take_along_axis(context.hidden, context.length[:, None, None] - 1, axis=1)


def neighbours(behind: Callable[[Array], Array], logits: Array, context: Context) -> Steps:
    """Token by token from the logits [B, K, V] of a block, of which each changes those of the next.

    behind: [B, 1] tokens -> [B, 1, V], what they add to the logits of the next place.
    """
    taught = context.taught

    def at(i: Array, tokens: Array) -> Array:
        own = jax.lax.dynamic_index_in_dim(logits, i, axis=1, keepdims=False)
        return own + behind(tokens[:, None])[:, 0]

    def advance(i: Array, tokens: Array) -> tuple[Array, Array]:
        if taught is not None:
            tokens = jax.lax.dynamic_index_in_dim(taught, i - 1, axis=1, keepdims=False)
        return at(i, tokens), i + 1

    return Steps(at(jnp.int32(0), last_tokens(context, 1)[:, 0]), advance, jnp.int32(1))


def for_timing(block: Array) -> Request:
    """Returns a request for a block [B, K], where only the time that it takes counts."""
    keys = jax.vmap(jax.random.key)(jnp.sum(block, axis=1))
    one = jnp.ones([len(block)], jnp.int32)
    given: Any = {"inputs": None, "cache": None, "hidden": None, "active": one > 0}
    context = Context(tokens=block, length=one, **given)
    return Request(context, jnp.broadcast_to(keys[:, None], block.shape), block.shape[1] * one)


def check_length(what: str, block: int, context: Context) -> None:
    """Raises ValueError, at tracing, for drafts that are longer than a block."""
    longest = context.cache.capacity - context.tokens.shape[1] + 1  # K, see `Plan.capacity`
    if longest > block:
        raise ValueError(
            f"{what} and the schedule drafts {longest} tokens; draft fewer, or train a drafter of "
            "longer blocks"
        )


def check_states(who: str, width: int, context: Context) -> None:
    """Raises ValueError, at tracing, for a target whose states have another width."""
    hidden = context.hidden
    if hidden is None or hidden.shape[-1] != width:
        found = "not there" if hidden is None else f"{hidden.shape[-1]} wide"
        raise ValueError(
            f"the drafter's {who} read states of width {width}, and the target's are {found}; give "
            "the target that they were trained for"
        )
