"""Functions of drafters that copy: the last tokens of a text, and their earlier occurrences."""

from __future__ import annotations

import jax.numpy as jnp

from specdec.types import Array, Context

NOTHING = -1  # an id that no token has


def last_tokens(context: Context, count: int) -> Array:
    """Returns [B, count], the last tokens of prompt and output, newest first, then NOTHING."""
    text = context.history
    index = text.length[:, None] - 1 - jnp.arange(count)[None]
    tokens = jnp.take_along_axis(text.tokens, jnp.maximum(index, 0), axis=1)
    return jnp.where(index >= 0, tokens, NOTHING)


def source_of(context: Context) -> Array:
    """Returns [B, S] int32, the token ids of the prompts if there are any, else of the inputs."""
    return context.inputs if context.prompt is None else context.prompt.tokens


def in_source(context: Context) -> Array:
    """Returns [B, S] bool, whether each token of `source_of(context)` is text, not padding."""
    prompt = context.prompt
    if prompt is None:
        return context.inputs != context.pad_id
    return jnp.arange(prompt.tokens.shape[1])[None] < prompt.length[:, None]


def matches(tokens: Array, last: Array, counts: Array) -> Array:
    """Returns [B, L], the length of the match that ends at each place of `tokens` [B, L].

    A match equals the end of the text, `last` [B, n], newest first. Only places where `counts`
    [B, L] is True can be in a match.
    """
    tokens = jnp.where(counts, tokens, NOTHING - 1)
    going, length = counts, jnp.zeros(tokens.shape, jnp.int32)
    for back in range(last.shape[1]):
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)), constant_values=NOTHING - 1)
        going &= shifted[:, : tokens.shape[1]] == last[:, back, None]
        length += going
    return length


def slices(tokens: Array, start: Array, width: int) -> Array:
    """Returns [B, width, ...], row b from `start[b]` on, repeating the last column at the end."""
    index = jnp.minimum(start[:, None] + jnp.arange(width)[None], tokens.shape[1] - 1)
    return jnp.take_along_axis(tokens, jnp.expand_dims(index, range(2, tokens.ndim)), axis=1)


def check_inputs(drafter: object, context: Context) -> None:
    """Raises ValueError if there is neither a prompt nor an input of token ids [B, S] to copy."""
    if context.prompt is not None:
        return
    inputs = context.inputs
    shape = getattr(inputs, "shape", None)
    if shape is None or len(shape) != 2 or not jnp.issubdtype(inputs.dtype, jnp.integer):
        what = type(inputs).__name__ if shape is None else f"{inputs.dtype}{list(shape)}"
        raise ValueError(
            f"{type(drafter).__name__} copies from the inputs, which are {what}; it needs token "
            "ids, int32 [B, S], as T5 reads"
        )
