"""Accept what the target would have chosen itself, at temperature 0."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.types import Array, Draft, Noise, Scores, Verdict
from specdec.verifiers.decide import match


@dataclasses.dataclass(frozen=True)
class GreedyMatch:
    """Keeps the longest prefix that the target would have chosen itself, then its next choice."""

    exact: ClassVar[bool] = True
    greedy_only: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        best = jnp.argmax(scores.logits, axis=-1)
        return (draft.tokens == best[:-1]).astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        best = jnp.argmax(scores.logits[n], axis=-1)
        return jax.nn.one_hot(best, scores.logits.shape[-1], dtype=scores.probs.dtype)

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        return match(draft, jnp.argmax(scores.logits, axis=-1))
