"""T5Gemma as a model."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.stack import ReadsEncoder
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
    network_class: ClassVar[type[StackNetwork]] = GemmaNetwork
    size_names: ClassVar[tuple[str, ...]] = (*DECODER, *ENCODER)

    @property
    def cache_heads(self) -> int:
        """A number that a mesh divides only if it divides the heads of keys of both stacks."""
        return math.gcd(self.config.num_kv_heads, self.config.encoder_num_kv_heads)
