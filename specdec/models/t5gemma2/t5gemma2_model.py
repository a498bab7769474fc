"""T5Gemma, version 2, as a model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from specdec.models.bases.networks import StackNetwork
from specdec.models.t5gemma.t5gemma_config import T5GemmaConfig
from specdec.models.t5gemma.t5gemma_model import T5Gemma
from specdec.models.t5gemma2.t5gemma2_config import T5Gemma2Config
from specdec.models.t5gemma2.t5gemma2_network import MergedNetwork


@dataclasses.dataclass(frozen=True)
class T5Gemma2(T5Gemma):
    """The text part of a T5Gemma 2 as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5Gemma2Config
    config_class: ClassVar[type[T5GemmaConfig]] = T5Gemma2Config
    network_class: ClassVar[type[StackNetwork]] = MergedNetwork
