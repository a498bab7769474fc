"""As long as the drafter is sure of all that it proposes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specdec.common.values import Probability
from specdec.schedules.stopping import Signals, Stopping, signals
from specdec.types import Array, Params, PyTree


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

    def stops(self, params: Params, signals: Signals) -> Any:
        return jnp.cumprod(signals.confidence, axis=-1) < self.threshold
