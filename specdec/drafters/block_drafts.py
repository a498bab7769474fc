"""Functions for drafters that propose a block of tokens in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from specdec.drafters.draft_loop import Steps
from specdec.drafters.matching import last_tokens
from specdec.types import Array, Context, Request


def mask_ids(vocab_size: int, masks: int, distinct: bool) -> Array:
    """Returns [masks] int32, the masks' ids: the vocabulary's last ids, or its last id repeated."""
    first = vocab_size - masks if distinct else vocab_size - 1
    return first + jnp.arange(masks, dtype=jnp.int32) * distinct


def visible_in_block(text: Array, size: int, masks: int, cached: bool) -> Array:
    """Returns [B, T, T] bool, whether token i of a block attends to token j; T = size + masks.

    The block has `size` slots for text, and then the masks. Row b uses the first `text[b]` slots;
    no token attends to unused slots. If `cached`, text attends only to itself and earlier text.
    """
    index = jnp.arange(size + masks)[None]
    seen = ((index >= size) | (index < text[:, None]))[:, None]  # [B, 1, T] by a mask
    if not cached:
        return jnp.broadcast_to(seen, (len(text), size + masks, size + masks))
    return jnp.where((index >= size)[:, :, None], seen, jnp.tri(size + masks, dtype=bool)[None])


def last_state(context: Context) -> Array:
    """Returns [B, 1, D], the target's hidden state that produced the pending token."""
    assert context.hidden is not None, "the drafter's reads_hidden is False"
    return jnp.take_along_axis(context.hidden, context.length[:, None, None] - 1, axis=1)


def neighbours(behind: Callable[[Array], Array], logits: Array, context: Context) -> Steps:
    """Returns steps through a block's logits [B, K, V]; each token changes the next one's logits.

    `behind` maps tokens [B, 1] to the term [B, 1, V] that is added to the next token's logits.
    """
    taught = context.taught

    def at(i: Array, tokens: Array) -> Array:
        at_place = jax.lax.dynamic_index_in_dim(logits, i, axis=1, keepdims=False)
        return at_place + behind(tokens[:, None])[:, 0]

    def advance(i: Array, tokens: Array) -> tuple[Array, Array]:
        if taught is not None:
            tokens = jax.lax.dynamic_index_in_dim(taught, i - 1, axis=1, keepdims=False)
        return at(i, tokens), i + 1

    return Steps(at(jnp.int32(0), last_tokens(context, 1)[:, 0]), advance, jnp.int32(1))


def for_timing(block: Array) -> Request:
    """Returns a request for K tokens per row, only for timing; `block` [B, K] has any ids."""
    keys = jax.vmap(jax.random.key)(jnp.sum(block, axis=1))
    ones = jnp.ones([len(block)], jnp.int32)
    unread: Any = {"inputs": None, "cache": None, "hidden": None, "active": ones > 0}
    context = Context(tokens=block, length=ones, **unread)
    return Request(context, jnp.broadcast_to(keys[:, None], block.shape), block.shape[1] * ones)


def check_length(what: str, block: int, context: Context) -> None:
    """Raises ValueError, at tracing, for drafts above `block` tokens; `what` begins its message."""
    longest = context.cache.capacity - context.tokens.shape[1] + 1  # K, see `Plan.capacity`
    if longest > block:
        raise ValueError(
            f"{what} and the schedule drafts {longest} tokens; draft fewer, or train a drafter of "
            "longer blocks"
        )


def check_states(who: str, width: int, context: Context) -> None:
    """Raises ValueError, at tracing, if the target's states are not `width` wide, or missing."""
    hidden = context.hidden
    if hidden is None or hidden.shape[-1] != width:
        there = "missing" if hidden is None else f"{hidden.shape[-1]} wide"
        raise ValueError(
            f"the drafter's {who} read states of width {width}, and the target's are {there}; give "
            "the target that the drafter was trained for"
        )
