"""GPT-2's architecture, and the model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from flax import linen as nn

from specdec.common.values import PositiveInt, TokenIds
from specdec.models.bases.prompts import DecoderConfig, PromptModel
from specdec.models.layers.layers import LayerNorm


@dataclasses.dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """The architecture of a GPT-2 (Radford et al. 2019).

    Norms are layer norms, positions have a learned table, the MLP has GELU by its tanh
    approximation, and all products have biases. The fields are those of `DecoderConfig`.
    """

    context: PositiveInt = 1024
    logits_via_embedding: bool = True
    stop_ids: TokenIds = dataclasses.field(default=(50256,), repr=False)

    norm: ClassVar[type[nn.Module]] = LayerNorm
    has_biases: ClassVar[bool] = True
    mlp_activations: ClassVar[tuple[str, ...]] = ("gelu",)

    @property
    def num_positions(self) -> int:
        return self.context


@dataclasses.dataclass(frozen=True)
class Gpt2(PromptModel):
    """A GPT-2 as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: Gpt2Config
    config_class: ClassVar[type[Gpt2Config]] = Gpt2Config
