"""Draft models that try to do harm in a beam search; none of them may change a beam."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp

from specdec.models.contract.model import Target
from specdec.types import Array, Cache, ModelOutput, PyTree

Harm: TypeAlias = Literal[
    "the unlikeliest", "stop ids", "ids beyond the vocabulary", "NaN", "infinite"
]
HARMS: tuple[Harm, ...] = get_args(Harm)
CERTAIN = 1e4  # a logit that leaves nothing to the others


@dataclasses.dataclass(frozen=True)
class HarmfulModel(Target):
    """A model with the cache and inputs of another one, and logits that do harm."""

    model: Target
    harm: Harm
    stop_ids: tuple[int, ...]  # type: ignore[misc]

    def init(self, key: Array) -> PyTree:
        return self.model.init(key)

    def axes(self) -> PyTree:
        return self.model.axes()

    def start(self, inputs: PyTree) -> Array:
        return self.model.start(inputs)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Cache:
        return self.model.prefill(params, inputs, capacity)

    def decode(
        self, params: PyTree, tokens: Array, cache: Cache, **others: Any
    ) -> tuple[ModelOutput, Cache]:
        output, fed = self.model.decode(params, tokens, cache, **others)
        return output._replace(logits=self._changed(output.logits)), fed

    def _changed(self, logits: Array) -> Array:
        if self.harm == "the unlikeliest":
            return -logits
        if self.harm == "stop ids":
            return logits.at[..., jnp.array(self.stop_ids, int)].set(CERTAIN)
        if self.harm == "ids beyond the vocabulary":
            room = [(0, 0)] * (logits.ndim - 1) + [(0, 8)]
            return jnp.pad(logits, room, constant_values=CERTAIN)
        return jnp.full_like(logits, jnp.nan if self.harm == "NaN" else jnp.inf)
