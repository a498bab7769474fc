"""T5 (v1.0, v1.1 and their descendants) as a network, with T5X's parameter tree."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from specdec.models.bases.networks import EncoderDecoderNetwork, cached
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import MASKED
from specdec.models.layers.layers import (
    MLP,
    Logits,
    RMSNorm,
    constrain,
    layer_class,
)
from specdec.models.layers.products import Fused, Kernels
from specdec.models.placement.layouts import of_logits
from specdec.models.t5.config import T5Config
from specdec.models.t5.t5_layers import Attention, RelativeBias
from specdec.types import Array, ModelOutput


def residual(x: Array) -> Array:
    """Returns the stream between sub-layers, which is whole on every device.

    Each sub-layer of a divided model then ends in one sum over the devices.
    """
    return constrain(x, "batch", "length", "embed")


def _norm(config: T5Config, kernels: Kernels) -> RMSNorm:
    return RMSNorm(config.dtype, config.layer_norm_epsilon, kernels.int8_tokens)


def _attention(config: T5Config, *kernels: Kernels) -> Attention:
    sizes = (config.num_heads, config.head_dim, config.emb_dim, config.dtype)
    return Attention(*sizes, *kernels)


def _mlp(config: T5Config, kernels: Kernels) -> MLP:
    return MLP(config.mlp_dim, config.emb_dim, config.mlp_activations, config.dtype, kernels)


def _relative_bias(config: T5Config, bidirectional: bool) -> RelativeBias:
    return RelativeBias(
        config.num_heads,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
        bidirectional,
    )


def _mask(visible: Array) -> Array:
    return jnp.where(visible, 0.0, MASKED)


def _biases(
    stack: Encoder | Decoder, layers: list, queries: Array, keys: Array, mask: Array
) -> list[Array]:
    """Returns, for each layer, the mask plus its relative-position bias or that of the stack."""
    if stack.config.relative_bias_per_layer:
        return [layer.relpos_bias(queries, keys) + mask for layer in layers]
    return [stack.relpos_bias(queries, keys) + mask] * len(layers)


def _own_kernels(fused: Fused, config: T5Config, x: Array, cache: KVCache) -> ModuleType | None:
    """Returns the module of the kernels if they can compute a call on [B, T, D], else None."""
    if fused == "triton":  # Pallas takes a second to import
        from specdec.models.t5 import fused as module
    else:
        from specdec.models.t5 import streamed as module
    rows, tokens, _ = x.shape
    return module if module.fits(config, rows, tokens, cache) else None


class EncoderLayer(nn.Module):
    config: T5Config
    kernels: Kernels

    def setup(self):
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)
        self.pre_attention_layer_norm = _norm(self.config, self.kernels)
        self.attention = _attention(self.config, self.kernels)
        self.pre_mlp_layer_norm = _norm(self.config, self.kernels)
        self.mlp = _mlp(self.config, self.kernels)

    def __call__(self, x: Array, bias: Array) -> Array:
        y = self.pre_attention_layer_norm(x)
        x = residual(x + self.attention.over_itself(y, bias))
        return residual(x + self.mlp(self.pre_mlp_layer_norm(x)))


class Encoder(nn.Module):
    config: T5Config
    kernels: Kernels

    def setup(self):
        config = self.config
        if not config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(config, bidirectional=True)
        layer = layer_class(EncoderLayer)
        self.layers = [layer(config, self.kernels) for _ in range(config.num_encoder_layers)]
        self.encoder_norm = _norm(config, self.kernels)

    def __call__(self, x: Array, inputs_mask: Array) -> Array:
        """Maps embeddings [B, S, D] and a mask [B, S] bool to [B, S, D]."""
        positions = jnp.arange(x.shape[1])[None]
        mask = _mask(inputs_mask[:, None, None, :])
        biases = _biases(self, self.layers, positions, positions, mask)
        for layer, bias in zip(self.layers, biases, strict=True):
            x = layer(x, bias)
        return self.encoder_norm(x)


class DecoderLayer(nn.Module):
    config: T5Config
    kernels: Kernels  # of a step
    of_inputs: Kernels  # of cross-attention's keys and values

    def setup(self):
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=False)
        self.pre_self_attention_layer_norm = _norm(self.config, self.kernels)
        self.self_attention = _attention(self.config, self.kernels)
        self.pre_cross_attention_layer_norm = _norm(self.config, self.kernels)
        kernels = (dataclasses.replace(self.kernels, joined=False), self.of_inputs)
        self.encoder_decoder_attention = _attention(self.config, *kernels)
        self.pre_mlp_layer_norm = _norm(self.config, self.kernels)
        self.mlp = _mlp(self.config, self.kernels)

    def __call__(
        self, x: Array, cache: KVCache, layer: int, bias: Array, cross_bias: Array
    ) -> tuple[Array, KVCache]:
        y = self.pre_self_attention_layer_norm(x)
        query, new = None, ()
        if self.kernels.joined:
            query, *new = self.self_attention.queries_keys_values(y)
        cache = cache.write(layer, *(new or self.self_attention.keys_values(y)))
        y = self.self_attention.over_cache(y, cache.keys[layer], cache.values[layer], bias, query)
        x = residual(x + y)
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention.over_inputs(
            y, cache.cross_keys[layer], cache.cross_values[layer], cross_bias
        )
        x = residual(x + y)
        y = self.mlp(self.pre_mlp_layer_norm(x))
        return residual(x + y), cache


class Decoder(nn.Module):
    config: T5Config
    has_head: bool  # whether it, not the token table, projects to the logits
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill

    def setup(self):
        config, kernels = self.config, self.kernels
        if not config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(config, bidirectional=False)
        layer = layer_class(DecoderLayer, static=(3,))
        self.layers = [layer(config, *kernels) for _ in range(config.num_decoder_layers)]
        self.decoder_norm = _norm(config, kernels[0])
        if self.has_head:
            self.logits_dense = self.head()

    @nn.nowrap
    def head(self) -> Logits:
        """Returns the head of a model whose token table does not project to the logits."""
        kernels = of_logits(self.kernels[0])
        return Logits(self.config.vocab_size, self.config.logits_via_embedding, kernels)

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns each layer's keys [B, H, head_dim, S] and values [B, H, S, head_dim] of [B, S,
        D]."""
        return cached(
            [layer.encoder_decoder_attention.keys_values(encoded) for layer in self.layers]
        )

    def __call__(
        self,
        x: Array,
        cache: KVCache,
        ancestors: Array | View | None,
        layers: range,
        fused: Fused | None = None,
    ) -> tuple[Array, KVCache]:
        """Runs some of the layers on the input of the first of them."""
        cache = cache.placed()
        block = cache.view(x.shape[1], ancestors)
        cross_bias = _mask(cache.inputs_mask[:, None, None, :])
        run = [self.layers[i] for i in layers]
        biases = _biases(self, run, block.queries, block.keys, _mask(block.visible[:, None]))
        known = ancestors is None and not self.is_initializing()
        if fused and known and (kernels := _own_kernels(fused, self.config, x, cache)):
            params = self.variables["params"]
            x, cache = kernels.run(self.config, params, x, cache, layers, biases, cross_bias)
        else:
            for i, layer, bias in zip(layers, run, biases, strict=True):
                x, cache = layer(x, cache, i, bias, cross_bias)
        return x, cache.rewind(cache.length + x.shape[1])

    def pass_by(self, x: Array, cache: KVCache, layers: range) -> KVCache:
        """Writes some layers' keys and values as if the layers between them changed nothing."""
        cache = cache.placed()
        for i in layers:
            y = self.layers[i].pre_self_attention_layer_norm(x)
            cache = cache.write(i, *self.layers[i].self_attention.keys_values(y))
        return cache.rewind(cache.length + x.shape[1])


class T5(EncoderDecoderNetwork):
    """The network: `encode` once, then `decode` block by block. `T5Target` is its interface."""

    config: T5Config
    encoder_class: ClassVar[type[Encoder]] = Encoder
    decoder_class: ClassVar[type[Decoder]] = Decoder
    spread: ClassVar[float] = 1.0
    scaled: ClassVar[bool] = True

    @nn.nowrap
    def _has_encoder(self) -> bool:
        return self.config.num_encoder_layers > 0

    def decode(
        self,
        tokens: Array,
        cache: KVCache,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        x = self.token_embedder(tokens) if resume is None else resume
        return self.run(x, cache, ancestors, layers)

    def run(
        self,
        x: Array,
        cache: KVCache,
        ancestors: Array | View | None,
        layers: tuple[int, int] | None,
    ) -> tuple[ModelOutput, KVCache]:
        """Runs all layers of the decoder, or some, on the input of the first one, [B, T, D]."""
        fused = self.layout.fused if layers is None else None
        stream, cache = self.decoder(x, cache, ancestors, self.range_of(layers), fused)
        hidden = self.decoder.decoder_norm(stream)
        return ModelOutput(self.logits(hidden), hidden, None if layers is None else stream), cache

    def pass_by(self, stream: Array, cache: KVCache, layers: tuple[int, int]) -> KVCache:
        return self.decoder.pass_by(stream, cache, range(*layers))

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        return self.decode(tokens, self.encode(inputs, tokens.shape[1]))[0]
