"""Accept what the target would have chosen itself, at temperature 0."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import ByArgmax


@dataclasses.dataclass(frozen=True)
class GreedyMatch(ByArgmax):
    """Keeps the longest prefix that the target would have chosen itself, then its next choice."""

    exact: ClassVar[bool] = True

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return draft.tokens == jnp.argmax(scores.logits, axis=-1)[:-1]
