"""T5Gemma, version 1, as a model, with T5X's names for the parameters that a T5 has too.

Both stacks are Gemma 2's (2408.00118): norms before and behind each sub-layer, rotary positions,
grouped heads, soft caps, and a window in every other layer.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from specdec.models.bases.architecture import SPREAD
from specdec.models.bases.networks import EncoderDecoderNetwork, StackNetwork, scaled
from specdec.models.bases.stack import EncoderDecoder
from specdec.models.bases.transformer import Decoder, Encoder, masked
from specdec.models.contract.blocks import View
from specdec.models.layers.attention import soft_capped
from specdec.models.layers.layers import Embedding
from specdec.models.t5gemma.t5gemma_config import DECODER, ENCODER, T5GemmaConfig
from specdec.types import Array


class GemmaEncoder(Encoder):
    config: T5GemmaConfig

    def biases(self, positions: Array, inputs_mask: Array) -> list[Array]:
        c, visible = self.config, inputs_mask[:, None]
        ahead = positions[:, None] - positions[:, :, None]
        before, behind = c.encoder_window
        near = visible & ((ahead >= -before) & (ahead <= behind))
        masks = masked(visible)[:, None], masked(near)[:, None]
        return [masks[c.is_local(i)] for i in range(c.num_encoder_layers)]


class GemmaTableEncoder(GemmaEncoder):
    """An encoder with a token table of its own."""

    def setup(self):
        super().setup()
        c = self.config
        self.token_embedder = Embedding(c.vocab_size, c.encoder.emb_dim, c.dtype, spread=SPREAD)

    def embed(self, inputs: Array) -> Array:
        """Maps [B, S] int32 to scaled embeddings [B, S, D]."""
        return scaled(self.token_embedder(jnp.maximum(inputs, 0)))


class GemmaDecoder(Decoder):
    config: T5GemmaConfig

    def biases(self, seen: View, layers: range) -> list[Array]:
        near = seen.queries[:, :, None] - seen.keys[:, None] < self.config.window
        masks = masked(seen.visible)[:, None], masked(seen.visible & near)[:, None]
        return [masks[self.config.is_local(i)] for i in layers]


class GemmaNetwork(EncoderDecoderNetwork):
    config: T5GemmaConfig
    encoder_class: ClassVar[type[Encoder]] = GemmaTableEncoder
    decoder_class: ClassVar[type[Decoder]] = GemmaDecoder

    def embed_inputs(self, inputs: Array) -> Array:
        return self.encoder.embed(inputs)

    def logits(self, hidden: Array) -> Array:
        logits = super().logits(hidden)
        capped = soft_capped(logits, self.config.logits_cap)
        if self.config.head_ids is None:
            return capped
        return jnp.where(jnp.isneginf(logits), logits, capped)  # of ids that the head lacks


@dataclasses.dataclass(frozen=True)
class T5Gemma(EncoderDecoder):
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
