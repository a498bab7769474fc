"""Teacher forcing: given tokens go through a target, all positions in one call."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specdec.decoding.finite import check_scores
from specdec.models.contract.model import Target
from specdec.sampling import before_each, standardised
from specdec.types import Array, Cache, ModelOutput, PyTree, SamplingRule


def score(
    target_params: PyTree,
    inputs: PyTree,
    targets: Array,
    *,
    target: Target,
    sampling: SamplingRule | None = None,
    stop_ids: tuple[int, ...] | None = None,
) -> Array:
    """Scores given outputs with teacher forcing: one target call over all positions.

    Args:
      target_params: the target's parameters.
      inputs: as for `decode`.
      targets: [B, N] int32, padded with the target's `pad_id`. The stop id counts if it is given.
      target: the model.
      sampling: None gives the values of `DecodeOutput.log_probs` for the same tokens. A rule gives
        the log-probabilities that it draws with, after processors, temperature, top-k and top-p. A
        greedy rule gives the log-softmax of the processed logits. Excluded tokens have -inf.
      stop_ids: the ids that end a text, for processors; None for the target's own.

    Returns:
      [B, N] float32 in nats, 0 after a row's last token.

    Raises:
      NonFiniteLogits: the target's logits are NaN or infinite for one of the tokens. While this
        function is traced there is no error, and the log-probability is NaN.
    """
    ids = target.stop_ids or () if stop_ids is None else stop_ids
    rules = {"target": target, "sampling": sampling, "stop_ids": tuple(ids)}
    log_probs = _score(target_params, inputs, targets, **rules)
    check_scores(log_probs, target)
    return log_probs


@functools.partial(jax.jit, static_argnames=("target", "sampling", "stop_ids"))
def _score(
    params: PyTree,
    inputs: PyTree,
    targets: Array,
    *,
    target: Target,
    sampling: SamplingRule | None,
    stop_ids: tuple[int, ...],
) -> Array:
    cache = target.prefill(params, inputs, targets.shape[1])
    start = target.start(inputs)
    log_probs, output, _ = force(target, params, start, targets, cache)
    if sampling is None:
        return log_probs
    fed = jnp.concatenate([start[:, None], targets[:, :-1]], axis=1)
    history = before_each(fed, stop_ids, target.prompt(inputs))
    logits, probs = standardised(sampling, output.logits, *history)
    scores = jax.nn.log_softmax(logits, axis=-1) if sampling.greedy else jnp.log(probs)
    # A processor may hide NaN, and `decode` would end there.
    return jnp.where(jnp.isnan(log_probs), jnp.nan, _of_tokens(target, scores, targets))


def force(
    target: Target, params: PyTree, start: Array, tokens: Array, cache: Cache
) -> tuple[Array, ModelOutput, Cache]:
    """Feeds the start token and all but the last of tokens [B, T].

    Returns the tokens' log-probabilities [B, T], 0 after a row's last token, the target's output,
    and the cache.
    """
    fed = jnp.concatenate([start[:, None], tokens[:, :-1]], axis=1)
    output, cache = target.decode(params, fed, cache)
    log_probs = _of_tokens(target, jax.nn.log_softmax(output.logits, axis=-1), tokens)
    return log_probs, output, cache


def _of_tokens(target: Target, scores: Array, tokens: Array) -> Array:
    """Returns [B, T], the scores [B, T, V] of the given tokens, 0 after a row's last token."""
    scores = jnp.take_along_axis(scores, tokens[:, :, None], axis=2)[:, :, 0]
    inside = jnp.arange(tokens.shape[1])[None] < given_lengths(target, tokens)[:, None]
    return jnp.where(inside, scores, 0.0)


def unpadded(target: Target, tokens: Array) -> Array:
    """Returns tokens [B, T] with 0 in place of the padding after each row's last token."""
    inside = jnp.arange(tokens.shape[1])[None] < given_lengths(target, tokens)[:, None]
    return jnp.where(inside, tokens, 0)


def given_lengths(target: Target, tokens: Array) -> Array:
    """Returns [B], the tokens of each row of [B, T] up to the last that is not padding."""
    index = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.int32)[None]
    padding = target.pad_id
    return jnp.max(jnp.where(tokens != padding, index, 0), axis=1)
