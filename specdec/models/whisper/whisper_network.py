"""Whisper's network (Radford et al. 2022, 2212.04356), with T5X's names where a T5 has the part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.decoder_only import SPREAD
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.int8 import Weights
from specdec.models.layers.layers import (
    ACTIVATIONS,
    KEYS_LAST,
    MASKED,
    MLP,
    Dense,
    Embedding,
    LayerNorm,
    Logits,
    attend,
    attend_to_all,
    constrain,
    fan_in,
    layer_class,
    parameter,
    precision,
)
from specdec.models.layers.products import Kernels, Orders
from specdec.models.placement.layouts import Layout, kernels_of, logits_from_table, of_logits
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
        self, x: Array, keys: Array, values: Array, mask: Array, equation: str = KEYS_LAST
    ) -> Array:
        """Computes attention of x [B, T, D] over keys and values [B, H, C, head_dim]: [B, T, D]."""
        by_row = self.kernels.int8_tokens
        return self._joined(attend(self._queries(x), keys, values, mask, equation, by_row))

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
        given = cache.cross_keys[layer], cache.cross_values[layer], cross_mask
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention.over(y, *given, equation="bthd,bhdc->bhtc")
        return self._with_mlp(_added(x, y)), cache

    def pass_by(self, x: Array, cache: KVCache, layer: int) -> KVCache:
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
        given = c, self.kernels, self.kernels, False
        self.layers = [_layer()(*given) for _ in range(c.num_encoder_layers)]
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
    layout: Layout
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill

    def setup(self):
        c = self.config
        sizes = c.context, c.emb_dim, c.dtype
        self.position_embedder = Embedding(*sizes, rows="positions", spread=SPREAD)
        given = c, *self.kernels, True
        self.layers = [_layer()(*given) for _ in range(c.num_decoder_layers)]
        self.decoder_norm = _norm(c, self.kernels[0])
        if not logits_from_table(c, self.layout, self.kernels[0].int8_tokens):
            kernels = of_logits(self.kernels[0])
            self.logits_dense = Logits(c.vocab_size, kernels=kernels, ids=c.head_ids)

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns each layer's keys [B, H, head_dim, S] and values [B, H, S, head_dim]."""
        each = [layer.encoder_decoder_attention for layer in self.layers]
        keys, values = zip(*(one.keys_values(encoded) for one in each), strict=True)
        return tuple(jnp.moveaxis(x, 1, 3) for x in keys), tuple(x.swapaxes(1, 2) for x in values)

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer."""
        return x + self.position_embedder(jnp.minimum(positions, self.config.context - 1))

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


class WhisperNetwork(nn.Module):
    """The network: `encode` once, then `decode` block by block. `Whisper` is its interface."""

    config: WhisperConfig
    layout: Layout = "checkpoint"
    orders: Orders = ()
    weights: Weights = "stored"
    widened: bool = False

    def setup(self):
        c, kernels = self.config, self._kernels()
        self.token_embedder = Embedding(c.vocab_size, c.emb_dim, c.dtype, spread=SPREAD)
        if c.encoded_dim is None:
            self.encoder = WhisperEncoder(c, kernels[1])
        self.decoder = WhisperDecoder(c, self.layout, kernels)

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        encoded = self.encoder(inputs)
        return self.attach(encoded, jnp.ones(encoded.shape[:2], bool), capacity)

    def attach(self, encoded: Array, inputs_mask: Array, capacity: int) -> KVCache:
        c = self.config
        cross_keys, cross_values = self.decoder.cross_keys_values(encoded)
        return KVCache.create(
            encoded.shape[0],
            capacity,
            layers=c.num_decoder_layers,
            heads=c.num_heads,
            head_dim=c.head_dim,
            dtype=c.dtype,
            cross_keys=cross_keys,
            cross_values=cross_values,
            encoded=encoded,
            inputs_mask=inputs_mask,
        )

    def decode(
        self,
        tokens: Array,
        cache: KVCache,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        seen = cache.view(tokens.shape[1], ancestors)
        x = resume
        if x is None:  # padding may be -1
            x = self.decoder.enter(self.token_embedder(jnp.maximum(tokens, 0)), seen.queries)
        run = range(self.config.num_decoder_layers)
        run = run if layers is None else run[slice(*layers)]
        stream, cache = self.decoder(x, cache, seen, run)
        hidden = self.decoder.decoder_norm(stream)
        return ModelOutput(self.logits(hidden), hidden, None if layers is None else stream), cache

    def pass_by(self, stream: Array, cache: KVCache, layers: tuple[int, int]) -> KVCache:
        cache = cache.placed()
        for i in range(*layers):
            cache = self.decoder.layers[i].pass_by(stream, cache, i)
        return cache.rewind(cache.length + stream.shape[1])

    def logits(self, hidden: Array) -> Array:
        if not logits_from_table(self.config, self.layout, self.weights == "int8_tokens"):
            return self.decoder.logits_dense(hidden)
        table = dataclasses.replace(of_logits(self._kernels()[0]), transposed=True)
        return self.token_embedder.logits(hidden, table, scaled=False)

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        c = self.config
        if c.encoded_dim is None:
            return self.decode(tokens, self.encode(inputs, tokens.shape[1]))[0]
        encoded = jnp.zeros([len(tokens), c.input_positions, c.encoded_dim], c.dtype)
        cache = self.attach(encoded, jnp.ones(encoded.shape[:2], bool), tokens.shape[1])
        return self.decode(tokens, cache)[0]

    @nn.nowrap
    def _kernels(self) -> tuple[Kernels, Kernels]:
        return kernels_of(self.layout, self.orders, self.weights, self.widened)
