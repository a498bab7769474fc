"""Given tokens through a target, all positions in one call."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specdec.types import Array, ModelOutput, PyTree, Target


def score(target_params: PyTree, inputs: PyTree, targets: Array, *, target: Target) -> Array:
    """Log-probabilities of given outputs, teacher-forced: one target call over all positions.

    The values are those of `DecodeOutput.log_probs` for the same tokens.

    Args:
      inputs: as for `decode`.
      targets: [B, N] int32, with the stop id if that is to count, filled up with the target's
        `pad_id`.

    Returns:
      [B, N] float32 in nats, 0 after a row's last token.
    """
    return _score(target_params, inputs, targets, target=target)


@functools.partial(jax.jit, static_argnames="target")
def _score(params: PyTree, inputs: PyTree, targets: Array, *, target: Target) -> Array:
    cache = target.prefill(params, inputs, targets.shape[1])
    return force(target, params, target.start(inputs), targets, cache)[0]


def force(
    target: Target, params: PyTree, start: Array, tokens: Array, cache: Any
) -> tuple[Array, ModelOutput, Any]:
    """Feeds the start token and all but the last of [B, T] tokens: their log-probabilities [B, T],
    0 after a row's last token, with the target's output and cache."""
    fed = jnp.concatenate([start[:, None], tokens[:, :-1]], axis=1)
    output, cache = target.decode(params, fed, cache)
    log_probs = jax.nn.log_softmax(output.logits, axis=-1)
    log_probs = jnp.take_along_axis(log_probs, tokens[:, :, None], axis=2)[:, :, 0]
    inside = jnp.arange(tokens.shape[1])[None] < given_lengths(target, tokens)[:, None]
    return jnp.where(inside, log_probs, 0.0), output, cache


def given_lengths(target: Target, tokens: Array) -> Array:
    """[B] how many tokens each row of [B, T] has: up to its last that is not padding."""
    index = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.int32)[None]
    padding = getattr(target, "pad_id", 0)
    return jnp.max(jnp.where(tokens != padding, index, 0), axis=1)
