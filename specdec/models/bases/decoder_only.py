"""The network of decoders without an encoder, which families differ in by their configs.

The names of parameters are those of T5X's decoder.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from specdec.common.values import PositiveFloat, PositiveInt, Rule, TokenIds, is_integer
from specdec.models.bases.architecture import Architecture
from specdec.models.bases.networks import StackNetwork
from specdec.models.contract.cache import PromptCache
from specdec.models.layers.layers import DType
from specdec.models.sizes.kept_parts import Numbers
from specdec.types import Array, ModelOutput

NO_PAD = -1  # the padding id of a model whose vocabulary has none
PadId = Annotated[int, Rule(lambda value: is_integer(value, NO_PAD), "an id, or -1 for none")]
SIZES = ("emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim", "num_decoder_layers")


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Architecture):
    """The fields that all families of decoders have; a family adds its own.

    Args:
      vocab_size: V.
      emb_dim: D, the width of the residual stream.
      num_heads: attention heads of queries.
      num_kv_heads: heads of keys and values, a divisor of `num_heads`.
      head_dim: the size of a head.
      mlp_dim: hidden units of an MLP.
      num_decoder_layers: the number of layers.
      context: tokens of the longest text that the model was trained on.
      logits_via_embedding: whether the token table also projects to the logits.
      dtype: of matrix products and of the KV cache, 'float32' or 'bfloat16'.
      layer_norm_epsilon: epsilon of the norms.
      pad_id: the id that prompts are padded with; -1, which no token has, if the vocabulary has
        none.
      stop_ids: the ids that end a text.
      head_ids: the ids, ascending, that have a row in the output head; the logits of the others are
        -inf. The head is then an array of its own, even if logits are tied. None for all ids.
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
