"""T5Gemma's network, version 1, with T5X's names for the parameters that a T5 has too.

Both stacks are Gemma 2's (2408.00118): norms before and behind each sub-layer, rotary positions,
grouped heads, soft caps, and a window in every other layer.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.decoder_only import rotated
from specdec.models.bases.networks import SPREAD, EncoderDecoderNetwork, cached
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers import rowwise
from specdec.models.layers.attention import (
    MASKED,
    AttentionPolicy,
    attend_grouped,
    soft_capped,
)
from specdec.models.layers.layers import (
    MLP,
    Dense,
    Embedding,
    Logits,
    constrain,
    layer_class,
    parameter,
)
from specdec.models.layers.products import Kernels
from specdec.models.placement.layouts import of_logits
from specdec.models.t5gemma.t5gemma_config import StackSizes, T5GemmaConfig
from specdec.types import Array, ModelOutput


class GemmaNorm(nn.Module):
    """Computes x / rms(x) * (1 + scale) in float32, over the last axis."""

    config: T5GemmaConfig
    kernels: Kernels
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = parameter(self, "scale", nn.initializers.zeros, (self.axis,), (x.shape[-1],))
        x = x.astype(jnp.float32)
        squares = jnp.square(x)
        if self.kernels.int8_tokens:
            mean = rowwise.sums(squares) * (1 / x.shape[-1])
        else:
            mean = jnp.mean(squares, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(mean + self.config.layer_norm_epsilon)
        scale = jnp.expand_dims(1 + scale.astype(jnp.float32), tuple(range(x.ndim - 1)))
        return (x * scale).astype(self.config.dtype)


class GemmaAttention(nn.Module):
    """Attention in two halves, so that keys and values can be cached between them."""

    config: T5GemmaConfig
    sizes: StackSizes
    kernels: Kernels
    of_inputs: Kernels  # of keys and values that are made in prefill
    local: bool = False  # whether it sees a window

    def setup(self):
        sizes, dtype = self.sizes, self.config.dtype

        def dense(heads: int, kernels: Kernels) -> Dense:
            axes = ("embed", "joined_kv")
            return Dense(heads * sizes.head_dim, axes, dtype, kernels=kernels)

        self.query = dense(sizes.num_heads, self.kernels)
        self.key = dense(sizes.num_kv_heads, self.of_inputs)
        self.value = dense(sizes.num_kv_heads, self.of_inputs)
        self.out = Dense(sizes.emb_dim, ("joined_kv", "embed"), dtype, kernels=self.kernels)

    def keys_values(self, x: Array, positions: Array | None) -> tuple[Array, Array]:
        """Maps [B, T, D] to keys and values [B, T, G, head_dim]; keys are turned by positions."""
        key, value = (self._split(y, self.sizes.num_kv_heads) for y in (self.key(x), self.value(x)))
        return self._turned(self.normed_keys(key), positions), value

    def queries(self, x: Array, positions: Array | None) -> Array:
        """Maps [B, T, D] to scaled queries [B, T, H, head_dim], turned by positions."""
        query = self.normed_queries(self._split(self.query(x), self.sizes.num_heads))
        query = self._turned(query, positions)
        return query * np.asarray(self.config.query_scalar**-0.5, query.dtype)

    def mapped(self, y: Array) -> Array:
        """Maps heads [B, T, H, head_dim] back to the stream [B, T, D]."""
        y = constrain(y, "batch", "length", "heads", "kv")
        return self.out(y.reshape(*y.shape[:2], -1))

    def over(
        self,
        x: Array,
        positions: Array | None,
        keys: Array,
        values: Array,
        mask: Array,
        keys_transposed: bool = False,
    ) -> Array:
        """Computes attention of x [B, T, D] over keys and values [B, G, C, head_dim]: [B, T, D]."""
        policy = AttentionPolicy.of(self.kernels, keys_transposed, self.config.attention_cap)
        query = self.queries(x, positions)
        return self.mapped(attend_grouped(query, keys, values, mask, policy))

    def _split(self, x: Array, heads: int) -> Array:
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], heads, self.sizes.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")

    def normed_queries(self, x: Array) -> Array:
        return x

    def normed_keys(self, x: Array) -> Array:
        return x

    def _turned(self, x: Array, positions: Array | None) -> Array:
        if positions is None:
            return x
        return rotated(x, positions, self.config.rotary_rates(self.sizes.head_dim, self.local))


class GemmaLayer(nn.Module):
    """A layer of either stack; `cross` says whether it attends to the encoder's output."""

    config: T5GemmaConfig
    sizes: StackSizes
    kernels: Kernels
    of_inputs: Kernels
    cross: bool
    local: bool
    attention_class: ClassVar[type[GemmaAttention]] = GemmaAttention

    def setup(self):
        shared = self.config, self.kernels
        attention = self.config, self.sizes, self.kernels
        self.pre_self_attention_layer_norm = GemmaNorm(*shared)
        self.self_attention = self.attention_class(*attention, self.kernels, self.local)
        self.post_self_attention_layer_norm = GemmaNorm(*shared)
        if self.cross:
            self.pre_cross_attention_layer_norm = GemmaNorm(*shared)
            self.encoder_decoder_attention = GemmaAttention(*attention, self.of_inputs)
            self.post_cross_attention_layer_norm = GemmaNorm(*shared)
        self.pre_mlp_layer_norm = GemmaNorm(*shared)
        sizes = self.sizes.mlp_dim, self.sizes.emb_dim
        self.mlp = MLP(*sizes, ("gelu", "linear"), self.config.dtype, self.kernels)
        self.post_mlp_layer_norm = GemmaNorm(*shared)

    def encode(self, x: Array, positions: Array, mask: Array) -> Array:
        """Runs a layer of the encoder on [B, S, D]."""
        y = self.pre_self_attention_layer_norm(x)
        keys, values = self.self_attention.keys_values(y, positions)
        keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
        y = self.self_attention.over(y, positions, keys, values, mask)
        return self.with_mlp(added(x, self.post_self_attention_layer_norm(y)))

    def decode(
        self, x: Array, cache: KVCache, layer: int, positions: Array, mask: Array, cross_mask: Array
    ) -> tuple[Array, KVCache]:
        """Runs a layer of the decoder on [B, T, D]."""
        y = self.pre_self_attention_layer_norm(x)
        cache = cache.write(layer, *self.self_attention.keys_values(y, positions))
        y = self.self_attention.over(y, positions, cache.keys[layer], cache.values[layer], mask)
        x = added(x, self.post_self_attention_layer_norm(y))
        y = self.pre_cross_attention_layer_norm(x)
        inputs = cache.cross_keys[layer], cache.cross_values[layer], cross_mask
        y = self.encoder_decoder_attention.over(y, None, *inputs, keys_transposed=True)
        return self.with_mlp(added(x, self.post_cross_attention_layer_norm(y))), cache

    def cross_keys_values(self, encoded: Array) -> tuple[Array, Array]:
        """Maps the encoder's output [B, S, D] to keys and values [B, S, G, head_dim]."""
        return self.encoder_decoder_attention.keys_values(encoded, None)

    def pass_by(self, x: Array, cache: KVCache, layer: int, positions: Array) -> KVCache:
        y = self.pre_self_attention_layer_norm(x)
        return cache.write(layer, *self.self_attention.keys_values(y, positions))

    def with_mlp(self, x: Array) -> Array:
        return added(x, self.post_mlp_layer_norm(self.mlp(self.pre_mlp_layer_norm(x))))


def added(x: Array, y: Array) -> Array:
    """Returns the stream after a sub-layer, which is whole on every device."""
    return constrain(x + y, "batch", "length", "embed")


def _masks(near: Array, visible: Array) -> tuple[Array, Array]:
    """Returns the masks [B, 1, T, C] of all layers, and of those that see a window."""
    both = visible, visible & near
    everything, inside = (jnp.where(seen, 0.0, MASKED)[:, None] for seen in both)
    return everything, inside


class GemmaEncoder(nn.Module):
    config: T5GemmaConfig
    kernels: Kernels
    layer_type: ClassVar[type[GemmaLayer]] = GemmaLayer
    has_table: ClassVar[bool] = True

    def setup(self):
        c, sizes = self.config, self.config.encoder
        if self.has_table:
            self.token_embedder = Embedding(c.vocab_size, sizes.emb_dim, c.dtype, spread=SPREAD)
        arguments, layer = (c, sizes, self.kernels, self.kernels), layer_class(self.layer_type)
        self.layers = [layer(*arguments, False, c.is_local(i)) for i in range(sizes.layers)]
        self.encoder_norm = GemmaNorm(c, self.kernels)

    def embed(self, inputs: Array) -> Array:
        """Maps [B, S] int32 to scaled embeddings [B, S, D]."""
        return scaled(self.token_embedder(jnp.maximum(inputs, 0)))

    def __call__(self, x: Array, inputs_mask: Array) -> Array:
        """Maps embeddings [B, S, D] and a mask [B, S] bool to [B, S, D]."""
        c, positions = self.config, jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        ahead = positions[:, None] - positions[:, :, None]
        before, behind = c.encoder_window
        masks = _masks((ahead >= -before) & (ahead <= behind), inputs_mask[:, None])
        for i, layer in enumerate(self.layers):
            x = layer.encode(x, positions, masks[c.is_local(i)])
        return self.encoder_norm(x)


class GemmaDecoder(nn.Module):
    config: T5GemmaConfig
    has_head: bool  # whether it, not the token table, projects to the logits
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill
    layer_type: ClassVar[type[GemmaLayer]] = GemmaLayer
    cross: ClassVar[bool] = True  # whether layers have cross-attention of their own

    def setup(self):
        c = self.config
        arguments = c, c.decoder, *self.kernels, self.cross
        layer = layer_class(self.layer_type)
        self.layers = [layer(*arguments, c.is_local(i)) for i in range(c.num_decoder_layers)]
        self.decoder_norm = GemmaNorm(c, self.kernels[0])
        if self.has_head:
            kernels = of_logits(self.kernels[0])
            self.logits_dense = Logits(c.vocab_size, kernels=kernels, ids=c.head_ids)

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns each layer's keys [B, G, head_dim, S] and values [B, G, S, head_dim]."""
        return cached([layer.cross_keys_values(encoded) for layer in self.layers])

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer."""
        del positions  # queries and keys are turned by them
        return x

    def leave(self, stream: Array) -> Array:
        """Returns the states that logits are projected from, from the stream after a layer."""
        return self.decoder_norm(stream)

    def __call__(
        self, x: Array, cache: KVCache, seen: View, layers: range
    ) -> tuple[Array, KVCache]:
        """Runs some of the layers on the input of the first of them, [B, T, D]."""
        cache = cache.placed()
        near = seen.queries[:, :, None] - seen.keys[:, None] < self.config.window
        masks = _masks(near, seen.visible)
        cross_mask = jnp.where(cache.inputs_mask[:, None, None], 0.0, MASKED)
        for i in layers:
            mask = masks[self.config.is_local(i)]
            x, cache = self.layers[i].decode(x, cache, i, seen.queries, mask, cross_mask)
        return x, cache.rewind(cache.length + x.shape[1])


def scaled(x: Array) -> Array:
    return x * np.asarray(np.sqrt(x.shape[-1]), x.dtype)


class GemmaNetwork(EncoderDecoderNetwork):
    """The network: `encode` once, then `decode` block by block. `T5Gemma` is its interface."""

    config: T5GemmaConfig
    encoder_class: ClassVar[type[GemmaEncoder]] = GemmaEncoder
    decoder_class: ClassVar[type[GemmaDecoder]] = GemmaDecoder

    def embed_inputs(self, inputs: Array) -> Array:
        return self.encoder.embed(inputs)

    def embed(self, tokens: Array) -> Array:
        """Maps tokens [B, T] int32 of outputs to scaled embeddings [B, T, D]."""
        return scaled(super().embed(tokens))

    def logits(self, hidden: Array) -> Array:
        logits = super().logits(hidden)
        capped = soft_capped(logits, self.config.logits_cap)
        if self.config.head_ids is None:
            return capped
        return jnp.where(jnp.isneginf(logits), logits, capped)  # of ids that the head lacks

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        c, capacity = self.config, tokens.shape[1]
        if c.encoded_dim is None:
            return self.decode(tokens, self.encode(inputs, capacity))[0]
        encoded = jnp.zeros([*inputs.shape, c.encoded_dim], c.dtype)
        return self.decode(tokens, self.attach(encoded, inputs != c.pad_id, capacity))[0]
