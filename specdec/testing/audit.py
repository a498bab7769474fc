"""Finds where two outputs for one text differ, and how close the target's scores were there."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.common import hosts
from specdec.decoding import token_key
from specdec.models.contract.model import Target
from specdec.plan import stop_ids_of
from specdec.sampling import gumbel, standardised
from specdec.types import Array, History, PyTree, SamplingRule


class Divergence(NamedTuple):
    """The first position at which two outputs of a row differ."""

    row: int
    position: int  # in the output, from 0
    gap: float  # the difference of the target's scores of the two tokens there, in nats


def divergences(
    target: Target,
    params: PyTree,
    keys: Array,
    inputs: Array,
    ours: Array,
    plain: Array,
    *,
    sampling: SamplingRule,
    stop_ids: tuple[int, ...] | None = None,
) -> list[Divergence]:
    """Compares outputs that should be equal: greedy, or sampled with the same token keys.

    Floating-point sums in another order may change the winner of a near-tie, and all tokens after
    it. So each row is examined only at its first difference. The target scores the common prefix
    again, in one call. The gap is the difference between the scores of the two tokens: logits if
    greedy, log p + gumbel otherwise. A gap of the size of rounding (1e-4 for float32) is harmless.
    A larger gap shows an error.

    Args:
      target: the model.
      params: the target's parameters.
      keys: [B] row keys.
      inputs: [B, S] int32.
      ours: [B, N] output tokens.
      plain: [B, N] output tokens of the target alone.
      sampling: the sampling rule.
      stop_ids: the plan's stop ids; None for the target's.

    Returns:
      A divergence for each row whose outputs differ.
    """
    rows = np.flatnonzero(np.any(np.asarray(ours) != np.asarray(plain), axis=1))
    if not rows.size:
        return []
    keys, inputs, ours, plain = (x[rows] for x in (keys, inputs, ours, plain))
    at = np.argmax(np.asarray(ours) != np.asarray(plain), axis=1)
    ids = stop_ids_of(stop_ids, target)
    gaps = hosts.whole(
        _gaps(params, keys, inputs, ours, plain, at, target=target, sampling=sampling, stop_ids=ids)
    )
    return [Divergence(int(r), int(t), float(g)) for r, t, g in zip(rows, at, gaps, strict=True)]


@functools.partial(jax.jit, static_argnames=("target", "sampling", "stop_ids"))
def _gaps(
    params: PyTree,
    keys: Array,
    inputs: Array,
    ours: Array,
    plain: Array,
    at: Array,
    *,
    target: Target,
    sampling: SamplingRule,
    stop_ids: tuple[int, ...],
) -> Array:
    """Returns [B] float32, the gaps between the scores of the two tokens at positions `at` [B]."""
    fed = jnp.concatenate([target.start(inputs)[:, None], plain[:, :-1]], axis=1)
    output, _ = target.decode(params, fed, target.prefill(params, inputs, fed.shape[1]))
    logits = jnp.take_along_axis(output.logits, at[:, None, None], axis=1)[:, 0]
    history = History(fed, at + 1, stop_ids).after(target.prompt(inputs))
    processed, probs = standardised(sampling, logits, at, history)
    if sampling.greedy:
        scores = processed
    else:
        noise = jax.vmap(lambda key, t: gumbel(token_key(key, t), logits.shape[1]))(keys, at)
        scores = jnp.log(probs) + noise
    tokens = jnp.stack([ours, plain], 1)[jnp.arange(len(at)), :, at]
    of_tokens = jnp.take_along_axis(scores, tokens, axis=1)
    return jnp.abs(of_tokens[:, 0] - of_tokens[:, 1])
