"""As long as the drafter has few choices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.schedules.buckets import UpToLongest
from specdec.types import Array, PyTree
from specdec.values import is_number


@dataclasses.dataclass(frozen=True)
class Entropy(UpToLongest):
    """Stops after a token that was drawn from a distribution with an entropy above a threshold.

    After Agrawal et al. 2024 (2410.18351), whose bound on acceptance falls with the entropy of the
    draft. It says how sure the drafter is whatever it draws, where `Confidence` looks at the token.

    threshold: in nats, from 0 to log V, which never stops. The distribution is the one that is
      drawn from; of a greedy draft it is the softmax. Drafters that copy have none, and go on.
    buckets: static ascending draft lengths, see `types.Schedule`.
    """

    threshold: float

    def __post_init__(self):
        super().__post_init__()
        given: Any = self.threshold
        if not is_number(given) or given < 0:
            raise ValueError(
                f"Entropy.threshold is {given!r}; give a number of nats from 0 on, as in 1.5"
            )

    def stop(
        self, params: PyTree, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        """Of probs [B, V]: which rows stop, [B] bool."""
        return carry, self.stops(None, jnp.sum(entr(probs), axis=1))

    def stops(self, confidence: Any, entropy: Any) -> Any:
        """Whether to stop after tokens drawn with these entropies, in nats, of any shape."""
        return entropy > self.threshold
