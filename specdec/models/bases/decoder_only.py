"""The network of decoders without an encoder, which families differ in by their configs.

The names of parameters are those of T5X's decoder.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from specdec.common.values import PositiveFloat, PositiveInt, Rule, TokenIds, is_integer
from specdec.models.bases.architecture import NO_PAD, Architecture
from specdec.models.bases.networks import StackNetwork
from specdec.models.contract.cache import PromptCache
from specdec.models.layers.layers import DType
from specdec.models.sizes.kept_parts import Numbers
from specdec.types import Array, ModelOutput

PadId = Annotated[int, Rule(lambda value: is_integer(value, NO_PAD), "an id, or -1 for none")]
SIZES = ("emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim", "num_decoder_layers")


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Architecture):
    """The fields that all families of decoders have; a family adds its own.

    The other fields are those of `Architecture`.

    Args:
      context: tokens of the longest text that the model was trained on.
    """

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    mlp_dim: PositiveInt
    num_decoder_layers: PositiveInt
    context: PositiveInt = 2048
    logits_via_embedding: bool = False
    dtype: DType = "float32"
    layer_norm_epsilon: PositiveFloat = 1e-5
    pad_id: PadId = dataclasses.field(default=NO_PAD, repr=False)
    stop_ids: TokenIds = dataclasses.field(default=(2,), repr=False)
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)

    num_encoder_layers: ClassVar[int] = 0
    has_cross: ClassVar[bool] = False
    mlp_activations: ClassVar[tuple[str, ...]] = ("silu", "linear")
    pad_remedy: ClassVar[str] = "-1"


class DecoderOnly(StackNetwork):
    """The network; `prompts.PromptModel` is its interface."""

    def __call__(self, tokens: Array, cache: PromptCache) -> ModelOutput:
        return self.decode(tokens, cache)[0]
