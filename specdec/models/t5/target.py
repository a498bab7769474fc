"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, cast

import jax.numpy as jnp

from specdec.models.cache import KVCache
from specdec.models.inputs import check_tokens
from specdec.models.stack import StackModel
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.network import T5
from specdec.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class T5Target(StackModel):
    """T5 as a `Model`, for targets and drafters, with T5X's tree of parameters.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    size_names: ClassVar[tuple[str, ...]] = SIZES

    def network(self) -> T5:
        """Returns the module, in this target's layout."""
        stored = self.layout, self.orders, self.weights
        return T5(self.config, *stored, self.widened)

    def example(self) -> tuple[Array, Array]:
        """Returns inputs and outputs of one token."""
        tokens = jnp.zeros([1, 1], jnp.int32)
        return tokens, tokens

    def start(self, inputs: Array) -> Array:
        """Returns the start token, which the config names."""
        return jnp.full(inputs.shape[0], self.config.decoder_start_id, jnp.int32)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> KVCache:
        """Encodes inputs [B, S] int32, and computes the cross-attention's keys and values.

        Raises:
          ValueError: the inputs have another shape or dtype.
        """
        check_tokens(inputs)
        return cast(KVCache, self.apply(params, inputs, capacity, method="encode"))
