"""T5 (v1.0, v1.1 and their descendants) as a network, with T5X's parameter tree."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from specdec.models.blocks import view
from specdec.models.cache import KVCache
from specdec.models.int8 import Weights
from specdec.models.layers import (
    MASKED,
    MLP,
    Dense,
    Embedding,
    Logits,
    RMSNorm,
    constrain,
    parameter,
    precision,
)
from specdec.models.products import Kernels, Orders
from specdec.models.t5.config import PAD_ID, T5Config
from specdec.models.t5.layers import Attention, RelativeBias
from specdec.models.t5.layouts import Layout, kernels_of, logits_from_table
from specdec.types import Array, ModelOutput


def _residual(x: Array) -> Array:
    """The stream between sub-layers, which every device has whole: each sub-layer of a model that
    is divided over devices then ends in one sum over them."""
    return constrain(x, "batch", "length", "embed")


def _norm(config: T5Config, name: str | None = None) -> RMSNorm:
    return RMSNorm(config.dtype, config.layer_norm_epsilon, name=name)


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
    """For each of these layers its relative-position bias, or that of the stack, and the mask."""
    if stack.config.relative_bias_per_layer:
        return [layer.relpos_bias(queries, keys) + mask for layer in layers]
    return [stack.relpos_bias(queries, keys) + mask] * len(layers)


class EncoderLayer(nn.Module):
    config: T5Config
    kernels: Kernels

    def setup(self):
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)
        self.pre_attention_layer_norm = _norm(self.config)
        self.attention = _attention(self.config, self.kernels)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _mlp(self.config, self.kernels)

    def __call__(self, x: Array, bias: Array) -> Array:
        y = self.pre_attention_layer_norm(x)
        x = _residual(x + self.attention.over_itself(y, bias))
        return _residual(x + self.mlp(self.pre_mlp_layer_norm(x)))


class Encoder(nn.Module):
    config: T5Config
    kernels: Kernels

    def setup(self):
        config = self.config
        if not config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(config, bidirectional=True)
        self.layers = [EncoderLayer(config, self.kernels) for _ in range(config.num_encoder_layers)]
        self.encoder_norm = _norm(config)

    def __call__(self, x: Array, inputs_mask: Array) -> Array:
        """[B, S, D] embeddings and [B, S] bool -> [B, S, D]."""
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
        self.pre_self_attention_layer_norm = _norm(self.config)
        self.self_attention = _attention(self.config, self.kernels)
        self.pre_cross_attention_layer_norm = _norm(self.config)
        kernels = (self.kernels, self.of_inputs)
        self.encoder_decoder_attention = _attention(self.config, *kernels)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _mlp(self.config, self.kernels)

    def __call__(
        self, x: Array, cache: KVCache, layer: int, bias: Array, cross_bias: Array
    ) -> tuple[Array, KVCache]:
        y = self.pre_self_attention_layer_norm(x)
        cache = cache.write(layer, *self.self_attention.keys_values(y))
        y = self.self_attention.over_cache(y, cache.keys[layer], cache.values[layer], bias)
        x = _residual(x + y)
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention.over_inputs(
            y, cache.cross_keys[layer], cache.cross_values[layer], cross_bias
        )
        x = _residual(x + y)
        y = self.mlp(self.pre_mlp_layer_norm(x))
        return _residual(x + y), cache


class LogOdds(nn.Module):
    """[B, T, D] -> [B, T] float32, of what a state is asked."""

    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.zeros
        weight = parameter(self, "weight", init, ("embed",), (x.shape[-1],))
        bias = parameter(self, "bias", init, (), ())
        x, weight = x.astype(self.dtype), weight.astype(self.dtype)
        exact, wide = precision(self.dtype), jnp.float32
        y = jnp.einsum("btd,d->bt", x, weight, precision=exact, preferred_element_type=wide)
        return y + bias.astype(wide)


class Decoder(nn.Module):
    config: T5Config
    layout: Layout
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill

    def setup(self):
        config, kernels = self.config, self.kernels
        if not config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(config, bidirectional=False)
        self.layers = [DecoderLayer(config, *kernels) for _ in range(config.num_decoder_layers)]
        self.decoder_norm = _norm(config)
        if not logits_from_table(config, self.layout):
            given = config.vocab_size, config.logits_via_embedding, kernels[0]
            self.logits_dense = Logits(*given, config.head_ids)
        if config.exit_classifier:
            self.exit_classifier = LogOdds(config.dtype)
        if config.confidence_head:
            self.confidence_head = LogOdds(config.dtype)
        if config.states_dim:
            self.states_dense = Dense(
                config.emb_dim, ("states", "embed"), config.dtype, kernels=kernels[0]
            )
        if config.markov_rank:
            sizes = config.vocab_size, config.markov_rank
            self.markov_embedder = Embedding(*sizes, config.dtype, "markov")
            self.markov_dense = Dense(
                config.vocab_size,
                ("markov", "vocab"),
                config.dtype,
                nn.initializers.variance_scaling(0.01, "fan_in", "normal"),
                kernels[0],
            )

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """[B, S, D] -> per layer keys [B, H, head_dim, S] and values [B, H, S, head_dim]."""
        pairs = [layer.encoder_decoder_attention.keys_values(encoded) for layer in self.layers]
        keys, values = zip(*pairs, strict=True)
        return tuple(jnp.moveaxis(x, 1, 3) for x in keys), tuple(x.swapaxes(1, 2) for x in values)

    def __call__(
        self, x: Array, cache: KVCache, ancestors: Array | None, layers: range
    ) -> tuple[Array, KVCache]:
        """Runs some of the layers on what comes to the first of them, [B, T, D] in the slots
        cache.length + (0..T-1); [B, T, D] that the last one leaves, before the final norm."""
        cache = cache.placed()
        block = view(cache.length, cache.capacity, x.shape[1], ancestors)
        cross_bias = _mask(cache.inputs_mask[:, None, None, :])
        run = [self.layers[i] for i in layers]
        biases = _biases(self, run, block.queries, block.keys, _mask(block.visible[:, None]))
        for i, layer, bias in zip(layers, run, biases, strict=True):
            x, cache = layer(x, cache, i, bias, cross_bias)
        return x, cache.rewind(cache.length + x.shape[1])

    def pass_by(self, x: Array, cache: KVCache, layers: range) -> KVCache:
        """Writes the keys and values that some layers would have of [B, T, D], as if the layers
        between them changed nothing."""
        cache = cache.placed()
        for i in layers:
            y = self.layers[i].pre_self_attention_layer_norm(x)
            cache = cache.write(i, *self.layers[i].self_attention.keys_values(y))
        return cache.rewind(cache.length + x.shape[1])


class T5(nn.Module):
    """The network: `encode` once, then `decode` block by block. `T5Target` is its interface."""

    config: T5Config
    layout: Layout = "checkpoint"
    orders: Orders = ()
    weights: Weights = "stored"
    pad_id: int = PAD_ID

    def setup(self):
        config, kernels = self.config, kernels_of(self.layout, self.orders, self.weights)
        self.token_embedder = Embedding(config.vocab_size, config.emb_dim, config.dtype)
        if config.encoded_dim is None:
            self.encoder = Encoder(config, kernels[1])
        self.decoder = Decoder(config, self.layout, kernels)

    def encode(self, inputs: Array, capacity: int) -> KVCache:
        inputs_mask = inputs != self.pad_id
        encoded = self.encoder(self.token_embedder(inputs), inputs_mask)
        return self.attach(encoded, inputs_mask, capacity)

    def attach(self, encoded: Array, inputs_mask: Array, capacity: int) -> KVCache:
        config = self.config
        cross_keys, cross_values = self.decoder.cross_keys_values(encoded)
        return KVCache.create(
            encoded.shape[0],
            capacity,
            layers=config.num_decoder_layers,
            heads=config.num_heads,
            head_dim=config.head_dim,
            dtype=config.dtype,
            cross_keys=cross_keys,
            cross_values=cross_values,
            encoded=encoded,
            inputs_mask=inputs_mask,
        )

    def decode(
        self,
        tokens: Array,
        cache: KVCache,
        ancestors: Array | None = None,
        states: Array | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        x = self.token_embedder(tokens) if resume is None else resume
        if states is not None:
            x = _residual(x + self.decoder.states_dense(states))
        run = range(self.config.num_decoder_layers)
        run = run if layers is None else run[slice(*layers)]
        stream, cache = self.decoder(x, cache, ancestors, run)
        hidden = self.decoder.decoder_norm(stream)
        left = None if layers is None else stream
        return ModelOutput(self.logits(hidden), hidden, left), cache

    def pass_by(self, stream: Array, cache: KVCache, layers: tuple[int, int]) -> KVCache:
        return self.decoder.pass_by(stream, cache, range(*layers))

    def exit_logits(self, hidden: Array) -> Array:
        """[B, T, D] -> [B, T] float32"""
        return self.decoder.exit_classifier(hidden)

    def confidence(self, hidden: Array) -> Array:
        """[B, T, D] -> [B, T] float32"""
        return self.decoder.confidence_head(hidden)

    def markov(self, tokens: Array) -> Array:
        """[B, T] -> [B, T, V]"""
        rows = self.decoder.markov_embedder(tokens)
        logits = self.decoder.markov_dense(rows).astype(jnp.float32)
        return constrain(logits, "batch", "length", None)

    def logits(self, hidden: Array) -> Array:
        if not logits_from_table(self.config, self.layout):
            return self.decoder.logits_dense(hidden)
        table = Kernels(transposed=True, orders=self.orders)
        return self.token_embedder.logits(hidden, table)

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        config, states = self.config, None
        if config.states_dim:
            states = jnp.zeros([*tokens.shape, config.states_dim], config.dtype)
        if config.markov_rank:
            self.markov(tokens)
        hidden = jnp.zeros([*tokens.shape, config.emb_dim], config.dtype)
        if config.exit_classifier:
            self.exit_logits(hidden)
        if config.confidence_head:
            self.confidence(hidden)
        if config.encoded_dim is None:
            cache = self.encode(inputs, tokens.shape[1])
        else:
            encoded = jnp.zeros([*inputs.shape, config.encoded_dim], config.dtype)
            cache = self.attach(encoded, inputs != self.pad_id, tokens.shape[1])
        return self.decode(tokens, cache, None, states)[0]
