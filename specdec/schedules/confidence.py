"""As long as the drafter is sure of what it proposes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specdec.schedules.buckets import UpToLongest
from specdec.types import Array, PyTree
from specdec.values import is_number


@dataclasses.dataclass(frozen=True)
class Confidence(UpToLongest):
    """Stops after a token whose probability under the draft is below a threshold.

    It is the rule without training of Mamou et al. 2024 (2405.04304), with a threshold of 0.4 in
    Hugging Face's assisted generation. The token itself is kept and verified: to drop it by its
    value would bias what is sampled.

    threshold: from 0, which never stops, to 1. The probability is the one that the token was drawn
      with; of a greedy draft that of the softmax. Drafters that copy have none, and go on.
    buckets: static ascending draft lengths, see `types.Schedule`.
    """

    threshold: float

    def __post_init__(self):
        super().__post_init__()
        given: Any = self.threshold
        if not is_number(given) or not 0 <= given <= 1:
            raise ValueError(
                f"Confidence.threshold is {given!r}; give a probability, from 0 to 1, as in 0.4"
            )

    def stop(
        self, params: PyTree, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        """Of probs [B, V] and the tokens drawn, [B] int32: which rows stop, [B] bool."""
        kept = jnp.take_along_axis(probs, tokens[:, None], axis=1)[:, 0]
        return carry, self.stops(kept, None)

    def stops(self, confidence: Any, entropy: Any) -> Any:
        """Whether to stop after tokens of these probabilities, arrays of any shape."""
        return confidence < self.threshold
