"""The signals of a draft token, by which a schedule decides whether to stop after it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.types import Array, Values

TOP = 10  # of the greatest probabilities


class Signals(NamedTuple):
    """The draft token's probability, and facts about the distribution it was drawn from.

    For a greedy draft, the distribution is the softmax.
    """

    confidence: Values  # [...] the token's probability
    entropy: Values  # [...] of the distribution, in nats
    top: Values  # [..., TOP] its greatest probabilities, descending
    index: Values | int  # [...] which token of the draft it is, from 0 on


def signals(probs: Array, tokens: Array, index: Array | int) -> Signals:
    """Returns the signals of tokens [...] int32 that were drawn from probs [..., V]."""
    confidence = jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0]
    top = jax.lax.top_k(probs, min(TOP, probs.shape[-1]))[0]
    missing = [(0, 0)] * (top.ndim - 1) + [(0, TOP - top.shape[-1])]
    entropy = jnp.sum(entr(probs), axis=-1)
    return Signals(confidence, entropy, jnp.pad(top, missing), index)
