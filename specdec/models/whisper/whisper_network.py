"""Whisper's network (Radford et al. 2022, 2212.04356), with T5X's names where a T5 has the part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.networks import SPREAD, EncoderDecoderNetwork, cached
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import (
    MASKED,
    AttentionPolicy,
    attend,
    attend_to_all,
)
from specdec.models.layers.layers import (
    ACTIVATIONS,
    MLP,
    Dense,
    Embedding,
    LayerNorm,
    Logits,
    constrain,
    fan_in,
    layer_class,
    parameter,
)
from specdec.models.layers.products import Kernels, precision
from specdec.models.placement.layouts import of_logits
from specdec.models.whisper.whisper_config import STRIDE, WhisperConfig
from specdec.types import Array, ModelOutput

_WIDTH = 3  # frames that a filter reads
_EPSILON = 1e-5  # of the norms of all Whispers
_LONGEST_WAVE = 10_000  # over 2 pi, in positions


def sinusoids(positions: int, size: int) -> np.ndarray:
    """Returns [positions, size] float32: sines in the first half, then cosines.

    Wavelengths grow geometrically, as in Vaswani et al. 2017, 1706.03762, section 3.5.
    """
    rates = np.exp(-math.log(_LONGEST_WAVE) / max(size // 2 - 1, 1) * np.arange(size // 2))
    angles = np.arange(positions)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _waves(key: Array, shape: tuple[int, int]) -> Array:
    return jnp.asarray(sinusoids(*shape))


class Convolution(nn.Module):
    """Maps frames [B, F, in] to [B, F / stride, features]: each from a frame and its neighbours."""

    features: int
    stride: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        axes, shape = ("filter", "channels", "embed"), (_WIDTH, x.shape[-1], self.features)
        filters = parameter(self, "filters", fan_in("truncated_normal"), axes, shape)
        bias = parameter(self, "bias", nn.initializers.zeros, axes[2:], shape[2:])
        y = jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            filters.astype(self.dtype),
            window_strides=(self.stride,),
            padding=[(1, 1)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            precision=precision(self.dtype),
        )
        return ACTIVATIONS["exact_gelu"](y + bias.astype(self.dtype)[None, None])


class WhisperAttention(nn.Module):
    """Attention in two halves, so that keys and values can be cached between them."""

    config: WhisperConfig
    kernels: Kernels
    of_inputs: Kernels  # of keys and values that are made in prefill

    def setup(self):
        c = self.config

        def dense(kernels: Kernels, bias: bool = True) -> Dense:
            return Dense(c.emb_dim, ("embed", "joined_kv"), c.dtype, kernels=kernels, bias=bias)

        self.query = dense(self.kernels)
        self.key = dense(self.of_inputs, bias=False)
        self.value = dense(self.of_inputs)
        axes = ("joined_kv", "embed")
        self.out = Dense(c.emb_dim, axes, c.dtype, kernels=self.kernels, bias=True)

    def keys_values(self, x: Array) -> tuple[Array, Array]:
        """Maps [B, T, in] to keys and values [B, T, H, head_dim]."""
        return self._split(self.key(x)), self._split(self.value(x))

    def over(
        self, x: Array, keys: Array, values: Array, mask: Array, keys_transposed: bool = False
    ) -> Array:
        """Computes attention of x [B, T, D] over keys and values [B, H, C, head_dim]: [B, T, D]."""
        policy = AttentionPolicy.of(self.kernels, keys_transposed)
        return self._joined(attend(self._queries(x), keys, values, mask, policy))

    def over_itself(self, x: Array) -> Array:
        """Computes attention of each position of [B, S, D] over all positions: [B, S, D]."""
        return self._joined(attend_to_all(self._queries(x), *self.keys_values(x)))

    def _queries(self, x: Array) -> Array:
        query = self.query(x)
        return self._split(query * np.asarray(self.config.head_dim**-0.5, query.dtype))

    def _joined(self, y: Array) -> Array:
        y = constrain(y, "batch", "length", "heads", "kv")
        return self.out(y.reshape(*y.shape[:2], -1))

    def _split(self, x: Array) -> Array:
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], self.config.num_heads, self.config.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")


class WhisperLayer(nn.Module):
    """A layer of either stack; `cross` says whether it attends to the encoder's output."""

    config: WhisperConfig
    kernels: Kernels
    of_inputs: Kernels
    cross: bool

    def setup(self):
        c = self.config
        self.pre_self_attention_layer_norm = _norm(c, self.kernels)
        self.self_attention = WhisperAttention(c, self.kernels, self.kernels)
        if self.cross:
            self.pre_cross_attention_layer_norm = _norm(c, self.kernels)
            self.encoder_decoder_attention = WhisperAttention(c, self.kernels, self.of_inputs)
        self.pre_mlp_layer_norm = _norm(c, self.kernels)
        self.mlp = MLP(c.mlp_dim, c.emb_dim, ("exact_gelu",), c.dtype, self.kernels, bias=True)

    def encode(self, x: Array) -> Array:
        """Runs a layer of the encoder on [B, S, D]."""
        y = self.pre_self_attention_layer_norm(x)
        return self._with_mlp(_added(x, self.self_attention.over_itself(y)))

    def decode(
        self, x: Array, cache: KVCache, layer: int, mask: Array, cross_mask: Array
    ) -> tuple[Array, KVCache]:
        """Runs a layer of the decoder on [B, T, D]."""
        y = self.pre_self_attention_layer_norm(x)
        cache = cache.write(layer, *self.self_attention.keys_values(y))
        y = self.self_attention.over(y, cache.keys[layer], cache.values[layer], mask)
        x = _added(x, y)
        inputs = cache.cross_keys[layer], cache.cross_values[layer], cross_mask
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention.over(y, *inputs, keys_transposed=True)
        return self._with_mlp(_added(x, y)), cache

    def pass_by(self, x: Array, cache: KVCache, layer: int, positions: Array) -> KVCache:
        del positions  # they are added to the embedded tokens
        y = self.pre_self_attention_layer_norm(x)
        return cache.write(layer, *self.self_attention.keys_values(y))

    def _with_mlp(self, x: Array) -> Array:
        return _added(x, self.mlp(self.pre_mlp_layer_norm(x)))


def _norm(config: WhisperConfig, kernels: Kernels) -> LayerNorm:
    return LayerNorm(config.dtype, _EPSILON, kernels.int8_tokens)


def _added(x: Array, y: Array) -> Array:
    """Returns the stream after a sub-layer, which is whole on every device."""
    return constrain(x + y, "batch", "length", "embed")


def _layer() -> Callable[..., nn.Module]:
    return layer_class(WhisperLayer)


class WhisperEncoder(nn.Module):
    config: WhisperConfig
    kernels: Kernels

    def setup(self):
        c = self.config
        self.convolution_0 = Convolution(c.emb_dim, 1, c.dtype)
        self.convolution_1 = Convolution(c.emb_dim, STRIDE, c.dtype)
        shape = (c.input_positions, c.emb_dim)
        self.positions = parameter(self, "positions", _waves, ("positions", "embed"), shape)
        arguments = c, self.kernels, self.kernels, False
        self.layers = [_layer()(*arguments) for _ in range(c.num_encoder_layers)]
        self.encoder_norm = _norm(c, self.kernels)

    def __call__(self, inputs: Array) -> Array:
        """Maps features [B, mel_bins, frames] to [B, S, D]."""
        x = self.convolution_1(self.convolution_0(inputs.swapaxes(1, 2)))
        x = constrain(x + self.positions.astype(x.dtype)[None], "batch", "length", "embed")
        for layer in self.layers:
            x = layer.encode(x)
        return self.encoder_norm(x)


class WhisperDecoder(nn.Module):
    config: WhisperConfig
    has_head: bool  # whether it, not the token table, projects to the logits
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill

    def setup(self):
        c = self.config
        sizes = c.context, c.emb_dim, c.dtype
        self.position_embedder = Embedding(*sizes, rows="positions", spread=SPREAD)
        arguments = c, *self.kernels, True
        self.layers = [_layer()(*arguments) for _ in range(c.num_decoder_layers)]
        self.decoder_norm = _norm(c, self.kernels[0])
        if self.has_head:
            kernels = of_logits(self.kernels[0])
            self.logits_dense = Logits(c.vocab_size, kernels=kernels, ids=c.head_ids)

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns each layer's keys [B, H, head_dim, S] and values [B, H, S, head_dim]."""
        return cached(
            [layer.encoder_decoder_attention.keys_values(encoded) for layer in self.layers]
        )

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer."""
        return x + self.position_embedder(jnp.minimum(positions, self.config.context - 1))

    def leave(self, stream: Array) -> Array:
        """Returns the states that logits are projected from, from the stream after a layer."""
        return self.decoder_norm(stream)

    def __call__(
        self, x: Array, cache: KVCache, seen: View, layers: range
    ) -> tuple[Array, KVCache]:
        """Runs some of the layers on the input of the first of them, [B, T, D]."""
        cache = cache.placed()
        mask = jnp.where(seen.visible, 0.0, MASKED)[:, None]
        cross_mask = jnp.where(cache.inputs_mask[:, None, None], 0.0, MASKED)
        for i in layers:
            x, cache = self.layers[i].decode(x, cache, i, mask, cross_mask)
        return x, cache.rewind(cache.length + x.shape[1])


class WhisperNetwork(EncoderDecoderNetwork):
    """The network: `encode` once, then `decode` block by block. `Whisper` is its interface."""

    config: WhisperConfig
    encoder_class: ClassVar[type[WhisperEncoder]] = WhisperEncoder
    decoder_class: ClassVar[type[WhisperDecoder]] = WhisperDecoder

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        encoded = self.encoder(inputs)
        return self.attach(encoded, jnp.ones(encoded.shape[:2], bool), capacity)

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        c = self.config
        if c.encoded_dim is None:
            return self.decode(tokens, self.encode(inputs, tokens.shape[1]))[0]
        encoded = jnp.zeros([len(tokens), c.input_positions, c.encoded_dim], c.dtype)
        cache = self.attach(encoded, jnp.ones(encoded.shape[:2], bool), tokens.shape[1])
        return self.decode(tokens, cache)[0]
