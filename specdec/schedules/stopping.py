"""Schedules that stop where the drafter is in doubt, and what they share."""

from __future__ import annotations

import abc
import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.common.values import Probability, number
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
    def stops(self, params: Params, signals: Signals) -> Array:
        """Returns whether to stop after tokens with these signals, [...] bool."""

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        index = jnp.broadcast_to(index, tokens.shape)
        return carry, self.stops(params, signals(probs, tokens, index))


@dataclasses.dataclass(frozen=True)
class Confidence(Stopping):
    """Stops after a token whose probability under the draft is below a threshold.

    It is the rule without training of Mamou et al. 2024 (2405.04304), with a threshold of 0.4 in
    Hugging Face's assisted generation.

    threshold: from 0, which never stops, to 1. The probability is the one that the token was drawn
      with; of a greedy draft that of the softmax.
    buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability

    def stops(self, params: Params, signals: Signals) -> Array:
        return signals.confidence < self.threshold


@dataclasses.dataclass(frozen=True)
class JointConfidence(Stopping):
    """Stops after a token up to which the draft as a whole is less probable than a threshold.

    A token is of use only if all before it are accepted. So where `Confidence` looks at a token's
    probability under the draft, this rule multiplies those of the draft's tokens.

    threshold: from 0, which never stops, to 1.
    buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability

    def init(self, batch: int) -> Any:
        """(the longest draft [B], the probability of a draft of no tokens [B])."""
        return super().init(batch), jnp.ones([batch], jnp.float32)

    def want(self, state: Any) -> Array:
        return state[0]

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        longest, joint = carry
        joint = joint * signals(probs, tokens, index).confidence
        return (longest, joint), joint < self.threshold

    def stops(self, params: Params, signals: Signals) -> Array:
        return jnp.cumprod(signals.confidence, axis=-1) < self.threshold


@dataclasses.dataclass(frozen=True)
class Entropy(Stopping):
    """Stops after a token that was drawn from a distribution with an entropy above a threshold.

    After Agrawal et al. 2024 (2410.18351), whose bound on acceptance falls with the entropy of the
    draft. It says how sure the drafter is whatever it draws, where `Confidence` looks at the token.

    threshold: in nats, from 0 to log V, which never stops. The distribution is the one that is
      drawn from; of a greedy draft it is the softmax.
    buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Annotated[float, number(lambda x: x >= 0, "a number of nats from 0 on, as in 1.5")]

    def stops(self, params: Params, signals: Signals) -> Array:
        return signals.entropy > self.threshold
