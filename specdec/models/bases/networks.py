"""The networks that families share: a decoder with its token table, and one with an encoder."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.architecture import Architecture
from specdec.models.bases.transformer import Decoder, Encoder
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.int8 import Rounding
from specdec.models.layers.layers import Embedding
from specdec.models.layers.products import Kernels
from specdec.models.placement.layouts import STORED, Layout, logits_from_table, of_logits
from specdec.types import Array, ModelOutput


def scaled(x: Array) -> Array:
    """Returns rows [.., D] multiplied by the root of D."""
    return x * np.asarray(np.sqrt(x.shape[-1]), x.dtype)


class StackNetwork(nn.Module):
    """A network of a token table and a decoder."""

    config: Architecture
    layout: Layout = STORED
    weights: Rounding = "stored"
    decoder_class: ClassVar[type[Decoder]] = Decoder

    def setup(self):
        c, width = self.config, self.config.table_dim or self.config.emb_dim
        self.token_embedder = Embedding(c.vocab_size, width, c.dtype, spread=c.spread)
        has_head = not self._logits_from_table()
        self.decoder = self.decoder_class(c, self.kernels(), has_head, self.layout.fused)

    @nn.nowrap
    def kernels(self) -> tuple[Kernels, Kernels]:
        """Returns the settings of the kernels of a decoder step, and of those of prefill."""
        return self.layout.kernels(self.weights)

    @nn.nowrap
    def _logits_from_table(self) -> bool:
        return logits_from_table(self.config, self.layout, self.weights == "int8_tokens")

    def embed(self, tokens: Array) -> Array:
        """Maps tokens [B, T] int32, where padding may be -1, to their rows [B, T, D]."""
        x = self.token_embedder(jnp.maximum(tokens, 0))
        return scaled(x) if self.config.scales_embeddings else x

    def decode(
        self,
        tokens: Array,
        cache: Any,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, Any]:
        x = self.embed(tokens) if resume is None else resume
        return self.run(x, cache, ancestors, layers, resume is None)

    def run(
        self,
        x: Array,
        cache: Any,
        ancestors: Array | View | None,
        layers: tuple[int, int] | None,
        embedded: bool = False,
    ) -> tuple[ModelOutput, Any]:
        """Runs all decoder layers, or `layers`, on x [B, T, D]; returns output and cache."""
        stream, cache = self.decoder(x, cache, ancestors, layers, embedded)
        hidden = self.decoder.leave(stream)
        return ModelOutput(self.logits(hidden), hidden, None if layers is None else stream), cache

    def pass_by(self, stream: Array, cache: Any, layers: tuple[int, int]) -> Any:
        cache, width = cache.placed(), stream.shape[1]
        positions = cache.view(width).queries if self.config.is_rotary else None
        for i in range(*layers):
            cache = self.decoder.layers[i].pass_by(stream, cache, i, positions)
        return cache.rewind(cache.length + width)

    def logits(self, hidden: Array) -> Array:
        if not self._logits_from_table():
            return self.decoder.logits_dense(hidden)
        table = dataclasses.replace(of_logits(self.kernels()[0]), transposed=True)
        return self.token_embedder.logits(hidden, table, scaled=self.config.scales_logits)


class EncoderDecoderNetwork(StackNetwork):
    """A `StackNetwork` with an encoder: `encode` once, then `decode` block by block."""

    encoder_class: ClassVar[type[Encoder]] = Encoder

    def setup(self):
        super().setup()
        if self.config.encoded_dim is None:
            self.encoder = self.encoder_class(self.config, self.kernels())

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        mask = self.mask_of(inputs)
        return self.attach(self.encoder(self.embed_inputs(inputs), mask), mask, capacity)

    def embed_inputs(self, inputs: Array) -> Array:
        """Maps inputs [B, S] int32 to the embeddings [B, S, D] that the encoder reads."""
        return self.embed(inputs)

    @nn.nowrap
    def mask_of(self, inputs: Array) -> Array:
        """Returns [B, S] bool, whether a position of the encoder's output is not padding."""
        return inputs != self.config.pad_id

    def attach(self, encoded: Array, inputs_mask: Array, capacity: int) -> KVCache:
        c = self.config
        cross_keys, cross_values = self.decoder.cross_keys_values(encoded)
        return KVCache.create(
            encoded.shape[0],
            capacity,
            layers=c.num_decoder_layers,
            heads=c.num_kv_heads,
            head_dim=c.head_dim,
            dtype=c.dtype,
            cross_keys=cross_keys,
            cross_values=cross_values,
            encoded=encoded,
            inputs_mask=inputs_mask,
        )

    def read(self, inputs: Array, capacity: int) -> KVCache:
        """Returns the cache of inputs; zeros stand for any output of another model's encoder."""
        c = self.config
        if c.encoded_dim is None:
            return self.encode(inputs, capacity)
        mask = self.mask_of(inputs)
        return self.attach(jnp.zeros([*mask.shape, c.encoded_dim], c.dtype), mask, capacity)

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        return self.decode(tokens, self.read(inputs, tokens.shape[1]))[0]
