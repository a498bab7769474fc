"""What schedules share that stop where the drafter is in doubt."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.schedules.buckets import UpToLongest
from specdec.types import Array, Params, PyTree

TOP = 10  # of the greatest probabilities


class Signals(NamedTuple):
    """What is to be seen of a draft token and of the distribution that it was drawn from; of a
    greedy draft that is the softmax."""

    confidence: Any  # [...] the token's probability
    entropy: Any  # [...] of the distribution, in nats
    top: Any  # [..., TOP] its greatest probabilities, descending
    index: Any  # [...] which token of the draft it is, from 0 on


def signals(probs: Array, tokens: Array, index: Any) -> Signals:
    """Of probs [..., V] and the tokens drawn, [...] int32."""
    confidence = jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0]
    top = jax.lax.top_k(probs, min(TOP, probs.shape[-1]))[0]
    missing = [(0, 0)] * (top.ndim - 1) + [(0, TOP - top.shape[-1])]
    entropy = jnp.sum(entr(probs), axis=-1)
    return Signals(confidence, entropy, jnp.pad(top, missing), index)


@dataclasses.dataclass(frozen=True)
class Stopping(UpToLongest):
    """Wants the longest draft, and stops after a token by what is to be seen of it.

    The token itself is kept and verified: to drop it by its value would bias what is sampled.
    Drafters that copy show nothing, and go on.
    """

    @property
    def stops_within(self) -> bool:
        return True

    @property
    def replayable(self) -> bool:
        return True

    @abc.abstractmethod
    def stops(self, params: Params, signals: Signals) -> Any:
        """Returns whether to stop after tokens with these signals, [...] bool."""

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        index = jnp.broadcast_to(index, tokens.shape)
        return carry, self.stops(params, signals(probs, tokens, index))
