"""OPT's architecture, and the model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from flax import linen as nn

from specdec.common.values import PositiveInt
from specdec.models.bases.architecture import PadId
from specdec.models.bases.prompts import DecoderConfig, PromptModel
from specdec.models.layers.layers import LayerNorm


@dataclasses.dataclass(frozen=True)
class OptConfig(DecoderConfig):
    """The architecture of an OPT (Zhang et al. 2022, 2205.01068).

    Norms are layer norms, positions have a learned table, the MLP has ReLU, and all products have
    biases. The other fields are those of `DecoderConfig`.

    Args:
      post_norm: whether norms follow the sub-layers, without a final norm, as in the model of 350M
        parameters.
      token_dim: the width of the token table, if it differs from D, as in the model of 350M.
    """

    logits_via_embedding: bool = True
    pad_id: PadId = dataclasses.field(default=1, repr=False)
    post_norm: bool = False
    token_dim: PositiveInt | None = None

    norm: ClassVar[type[nn.Module]] = LayerNorm
    has_biases: ClassVar[bool] = True
    mlp_activations: ClassVar[tuple[str, ...]] = ("relu",)
    first_position: ClassVar[int] = 2

    @property
    def norms_behind(self) -> bool:
        return self.post_norm

    @property
    def num_positions(self) -> int:
        return self.context + self.first_position

    @property
    def table_dim(self) -> int | None:
        return None if self.token_dim == self.emb_dim else self.token_dim


@dataclasses.dataclass(frozen=True)
class Opt(PromptModel):
    """An OPT as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: OptConfig
    config_class: ClassVar[type[OptConfig]] = OptConfig
