"""T5Gemma as a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.stack import ReadsEncoder
from specdec.models.contract.cache import kv_bytes
from specdec.models.t5gemma.t5gemma_config import DECODER, ENCODER, T5GemmaConfig
from specdec.models.t5gemma.t5gemma_network import GemmaNetwork


@dataclasses.dataclass(frozen=True)
class T5Gemma(ReadsEncoder):
    """A T5Gemma as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5GemmaConfig
    config_class: ClassVar[type[T5GemmaConfig]] = T5GemmaConfig
    size_names: ClassVar[tuple[str, ...]] = (*DECODER, *ENCODER)

    @property
    def cache_heads(self) -> int:
        """A number that a mesh divides only if it divides the heads of keys of both stacks."""
        return math.gcd(self.config.num_kv_heads, self.config.encoder_num_kv_heads)

    def network(self) -> GemmaNetwork:
        """Returns the module, in this model's layout."""
        stored = self.layout, self.orders, self.weights
        return GemmaNetwork(self.config, *stored, self.widened)

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values on one device, of outputs and inputs."""
        c, slots = self.config, slots + self.spare + inputs_length
        shape = (rows, c.num_kv_heads, slots, c.head_dim)
        return self.num_layers * kv_bytes(shape, c.dtype, self.axis_rules, mesh)
