"""The parts of networks that families of `StackModel`s share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.int8 import Rounding
from specdec.models.layers.layers import Embedding
from specdec.models.layers.products import Kernels
from specdec.models.placement.layouts import STORED, Layout, logits_from_table, of_logits
from specdec.types import Array, ModelOutput

SPREAD = 0.02  # of random tables, whose rows also project to logits without a scale


class StackNetwork(nn.Module):
    """A network with the stack "decoder"; a family adds the stack's class, and `setup` calls it.

    The class is called with the config, whether the stack has a head for the logits, and the
    kernels of a step and of prefill. The stack has `enter`, `leave`, and `layers` with `pass_by`,
    or the family has `decode` and `pass_by` of its own.
    """

    config: Any
    layout: Layout = STORED
    weights: Rounding = "stored"
    decoder_class: ClassVar[Callable[..., Any]]
    spread: ClassVar[float] = SPREAD  # of random rows of the token table
    scaled: ClassVar[bool] = False  # whether the table's logits are divided by sqrt(D)

    def setup(self):
        c = self.config
        self.token_embedder = Embedding(
            c.vocab_size, self._table_dim(), c.dtype, spread=self.spread
        )
        self.decoder = self.decoder_class(c, not self._logits_from_table(), self.kernels())

    @nn.nowrap
    def kernels(self) -> tuple[Kernels, Kernels]:
        """Returns the kernels of a decoder step, and those of prefill."""
        return self.layout.kernels(self.weights)

    @nn.nowrap
    def _table_dim(self) -> int:
        return self.config.emb_dim

    @nn.nowrap
    def _logits_from_table(self) -> bool:
        return logits_from_table(self.config, self.layout, self.weights == "int8_tokens")

    def embed(self, tokens: Array) -> Array:
        """Maps tokens [B, T] int32, where padding may be -1, to their rows [B, T, D]."""
        return self.token_embedder(jnp.maximum(tokens, 0))

    def decode(
        self,
        tokens: Array,
        cache: Any,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, Any]:
        seen = cache.view(tokens.shape[1], ancestors)
        x = resume
        if x is None:
            x = self.decoder.enter(self.embed(tokens), seen.queries)
        stream, cache = self.decoder(x, cache, seen, self.range_of(layers))
        hidden = self.decoder.leave(stream)
        return ModelOutput(self.logits(hidden), hidden, None if layers is None else stream), cache

    @nn.nowrap
    def range_of(self, layers: tuple[int, int] | None) -> range:
        """Returns the indices of layers (a, b), or of all."""
        every = range(self.config.num_decoder_layers)
        return every if layers is None else every[slice(*layers)]

    def pass_by(self, stream: Array, cache: Any, layers: tuple[int, int]) -> Any:
        cache, width = cache.placed(), stream.shape[1]
        positions = cache.view(width).queries
        for i in range(*layers):
            cache = self.decoder.layers[i].pass_by(stream, cache, i, positions)
        return cache.rewind(cache.length + width)

    def logits(self, hidden: Array) -> Array:
        if not self._logits_from_table():
            return self.decoder.logits_dense(hidden)
        table = dataclasses.replace(of_logits(self.kernels()[0]), transposed=True)
        return self.token_embedder.logits(hidden, table, scaled=self.scaled)


class EncoderDecoderNetwork(StackNetwork):
    """A `StackNetwork` with an encoder, which is called with the config and its kernels."""

    encoder_class: ClassVar[Callable[..., Any]]

    def setup(self):
        super().setup()
        if self._has_encoder():
            self.encoder = self.encoder_class(self.config, self.kernels()[1])

    @nn.nowrap
    def _has_encoder(self) -> bool:
        return self.config.encoded_dim is None

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        inputs_mask = inputs != self.config.pad_id
        encoded = self.encoder(self.embed_inputs(inputs), inputs_mask)
        return self.attach(encoded, inputs_mask, capacity)

    def embed_inputs(self, inputs: Array) -> Array:
        """Maps inputs [B, S] int32 to what the encoder reads, [B, S, D]."""
        return self.token_embedder(inputs)

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


def cached(pairs: list[tuple[Array, Array]]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Returns each layer's keys [B, H, head_dim, S] and values [B, H, S, head_dim], from pairs of
    keys and values [B, S, H, head_dim]."""
    keys, values = zip(*pairs, strict=True)
    return tuple(jnp.moveaxis(x, 1, 3) for x in keys), tuple(x.swapaxes(1, 2) for x in values)
