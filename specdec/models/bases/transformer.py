"""The layers and stacks that families share, with the switches of `architecture.Architecture`.

The names of parameters are those of T5X. A family may replace a layer's attention, a layer, or the
masks of a stack.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.architecture import SPREAD, Architecture, StackSizes
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import MASKED, AttentionPolicy, attend_grouped
from specdec.models.layers.layers import (
    MLP,
    Dense,
    Embedding,
    Logits,
    constrain,
    fan_in,
    layer_class,
)
from specdec.models.layers.products import Fused, Kernels
from specdec.models.placement.layouts import of_logits
from specdec.types import Array

_LONGEST_WAVE = 10_000  # over 2 pi, in positions


def rotated(x: Array, positions: Array, rates: np.ndarray) -> Array:
    """Returns heads rotated by their positions (Su et al. 2021, 2104.09864, section 3.4).

    Args:
      x: [B, T, H, head_dim]. Number i and number i + head_dim / 2 make a pair.
      positions: [B, T] int32.
      rates: [head_dim / 2], see `Architecture.rotary_rates`.
    """
    angles = positions[:, :, None, None].astype(jnp.float32) * rates[None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def sinusoids(positions: int, size: int) -> np.ndarray:
    """Returns [positions, size] float32: sines in the first half, then cosines.

    Wavelengths grow geometrically, as in Vaswani et al. 2017, 1706.03762, section 3.5.
    """
    rates = np.exp(-math.log(_LONGEST_WAVE) / max(size // 2 - 1, 1) * np.arange(size // 2))
    angles = np.arange(positions)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def norm_of(config: Architecture, kernels: Kernels, axis: str = "embed") -> Any:
    """Returns a norm of the family's class, over numbers with the logical axis `axis`."""
    norm_class: Any = config.norm
    return norm_class(config.dtype, config.layer_norm_epsilon, kernels.int8_tokens, axis)


def residual(x: Array) -> Array:
    """Returns the residual stream with a constraint that makes it whole on every device.

    Each sub-layer of a divided model then ends in one sum over the devices.
    """
    return constrain(x, "batch", "length", "embed")


def masked(visible: Array) -> Array:
    """Returns biases of attention logits, float32: 0 where slots are visible, else `MASKED`."""
    return jnp.where(visible, 0.0, MASKED)


class BlockInputs(NamedTuple):
    """The positions and attention biases of a block of tokens [B, T] in a decoder layer."""

    positions: Array  # [B, T] int32
    bias: Array  # [B, 1 or H, T, C] float32, added to the attention logits of the cache
    cross_bias: Array | None  # [B, 1, 1, S] float32, added to those of the encoder's output


class Attention(nn.Module):
    """Attention as separate functions, so that keys and values can be cached between them."""

    config: Architecture
    sizes: StackSizes
    kernels: Kernels
    of_inputs: Kernels | None = None  # of keys and values, if they are made in prefill
    local: bool = False  # whether tokens attend only to a window

    def setup(self):
        c, s = self.config, self.sizes

        def dense(name: str, heads: int, kernels: Kernels = self.kernels) -> Dense:
            init, axes = self.initializer(name), ("embed", "joined_kv")
            return Dense(heads * s.head_dim, axes, c.dtype, init, kernels, c.has_bias(name))

        if self.kernels.joined:
            self.query_key_value = dense("key", s.num_heads + 2 * s.num_kv_heads)
        else:
            of_inputs = self.of_inputs or self.kernels
            self.query = dense("query", s.num_heads)
            self.key = dense("key", s.num_kv_heads, of_inputs)
            self.value = dense("value", s.num_kv_heads, of_inputs)
        init, axes = self.initializer("out"), ("joined_kv", "embed")
        self.out = Dense(s.emb_dim, axes, c.dtype, init, self.kernels, c.has_bias("out"))
        if c.norms_heads:
            self.query_norm = norm_of(c, self.kernels, "kv")
            self.key_norm = norm_of(c, self.kernels, "kv")

    @nn.nowrap
    def initializer(self, name: str) -> Callable:
        """Returns the initializer of the kernel with this name, such as "key"."""
        return fan_in("truncated_normal")

    def keys_values(self, x: Array, positions: Array | None = None) -> tuple[Array, Array]:
        """Maps [B, T, D] to keys and values [B, T, G, head_dim]; keys are rotated by positions."""
        if self.kernels.joined:
            return self.queries_keys_values(x)[1:]
        groups = self.sizes.num_kv_heads
        key, value = self._split(self.key(x), groups), self._split(self.value(x), groups)
        key = self.key_norm(key) if self.config.norms_heads else key
        return self._turned(key, positions), value

    def queries(self, x: Array, positions: Array | None = None) -> Array:
        """Maps [B, T, D] to scaled queries [B, T, H, head_dim], rotated by positions."""
        query = self._split(self.query(x), self.sizes.num_heads)
        query = self.query_norm(query) if self.config.norms_heads else query
        query, scale = self._turned(query, positions), self.config.query_scale(self.sizes.head_dim)
        return query if scale is None else query * np.asarray(scale, query.dtype)

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        """Maps [B, T, D] to queries, keys and values [B, T, H, head_dim] by a joined kernel."""
        query, key, value = jnp.split(self.query_key_value(x), 3, axis=-1)
        heads = self.sizes.num_heads
        return self._split(query, heads), self._split(key, heads), self._split(value, heads)

    def over_cache(
        self,
        x: Array,
        cache: KVCache,
        layer: int,
        block: BlockInputs,
    ) -> tuple[Array, KVCache]:
        """Writes x [B, T, D] to a layer's cache; returns attention to it, and the cache."""
        query, new = None, ()
        if self.kernels.joined:
            query, *new = self.queries_keys_values(x)
        cache = cache.write(layer, *(new or self.keys_values(x, block.positions)))
        query = self.queries(x, block.positions) if query is None else query
        return self.over(query, cache.keys[layer], cache.values[layer], block.bias), cache

    def over_inputs(self, x: Array, keys: Array, values: Array, bias: Array) -> Array:
        """Returns attention [B, T, D] of x [B, T, D] over inputs' keys [B, G, head_dim, C]."""
        return self.over(self.queries(x), keys, values, bias, keys_transposed=True)

    def over_itself(self, x: Array, positions: Array, bias: Array) -> Array:
        """Returns attention [B, S, D] of the encoder's x [B, S, D] over its own keys and values."""
        keys, values = (y.swapaxes(1, 2) for y in self.keys_values(x, positions))
        return self.over(self.queries(x, positions), keys, values, bias)

    def over(
        self, query: Array, keys: Array, values: Array, bias: Array, keys_transposed: bool = False
    ) -> Array:
        """Returns attention [B, T, D] of queries over keys and values [B, G, C, head_dim].

        `bias` [B, 1 or H, T, C] float32 is added to the attention logits.
        """
        policy = AttentionPolicy.of(self.kernels, keys_transposed, self.config.attention_cap)
        return self.mapped(attend_grouped(query, keys, values, bias, policy))

    def mapped(self, x: Array) -> Array:
        """Maps heads [B, T, H, head_dim] back to the stream [B, T, D]."""
        x = constrain(x, "batch", "length", "heads", "kv")
        return self.out(x.reshape(*x.shape[:2], -1))

    def _split(self, x: Array, heads: int) -> Array:
        # Else the heads that it is split into decide how a TPU wants to have the kernel, and each
        # program begins with a copy of most kernels.
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], heads, self.sizes.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")

    def _turned(self, x: Array, positions: Array | None) -> Array:
        if not self.config.is_rotary or positions is None:
            return x
        return rotated(x, positions, self.config.rotary_rates(self.sizes.head_dim, self.local))


class TransformerLayer(nn.Module):
    """The common part of encoder and decoder layers: self-attention and an MLP."""

    config: Architecture
    sizes: StackSizes
    kernels: Kernels
    of_inputs: Kernels  # of cross-attention's keys and values
    local: bool = False
    attention_class: ClassVar[type[Attention]] = Attention
    first: ClassVar[str] = "self_attention"  # the name of the first sub-layer

    def setup(self):
        c, s, kernels = self.config, self.sizes, self.kernels
        attention = self.attention_class(c, s, kernels, local=self.local)
        self.add_part(self.first, self.first, attention)
        sizes = s.mlp_dim, s.emb_dim, c.mlp_activations, c.dtype
        self.add_part("mlp", "mlp", MLP(*sizes, kernels, c.has_biases))

    @nn.nowrap
    def add_part(self, name: str, norm: str, part: nn.Module) -> None:
        """Adds the sub-layer `part` as the field `name`, with norms named after `norm`."""
        setattr(self, name, part)
        setattr(self, f"pre_{norm}_layer_norm", norm_of(self.config, self.kernels))
        if self.config.norms_around:
            setattr(self, f"post_{norm}_layer_norm", norm_of(self.config, self.kernels))

    @nn.nowrap
    def added(self, x: Array, name: str, part: Callable[[Array], Array]) -> Array:
        """Returns the stream [B, T, D] after the sub-layer `part` with norms named after `name`."""
        norm = getattr(self, f"pre_{name}_layer_norm")
        if self.config.norms_behind:
            return residual(norm(x + part(x)))
        y = part(norm(x))
        y = getattr(self, f"post_{name}_layer_norm")(y) if self.config.norms_around else y
        return residual(x + y)


class EncoderLayer(TransformerLayer):
    def __call__(self, x: Array, positions: Array, bias: Array) -> Array:
        attention = getattr(self, self.first)
        x = self.added(x, self.first, lambda y: attention.over_itself(y, positions, bias))
        return self.added(x, "mlp", self.mlp)


class DecoderLayer(TransformerLayer):
    def setup(self):
        super().setup()
        if self.config.has_cross:
            kernels = dataclasses.replace(self.kernels, joined=False), self.of_inputs
            attention = self.attention_class(self.config, self.sizes, *kernels)
            self.add_part("encoder_decoder_attention", "cross_attention", attention)

    def __call__(
        self, x: Array, cache: KVCache, layer: int, block: BlockInputs
    ) -> tuple[Array, KVCache]:
        def over_outputs(y: Array) -> Array:
            nonlocal cache
            y, cache = self.self_attention.over_cache(y, cache, layer, block)
            return y

        def over_inputs(y: Array) -> Array:
            keys, values = cache.cross_keys[layer], cache.cross_values[layer]
            return self.encoder_decoder_attention.over_inputs(y, keys, values, block.cross_bias)

        x = self.added(x, "self_attention", over_outputs)
        if self.config.has_cross:
            x = self.added(x, "cross_attention", over_inputs)
        return self.added(x, "mlp", self.mlp), cache

    def cross_keys_values(self, encoded: Array) -> tuple[Array, Array]:
        """Maps the encoder's output [B, S, D] to keys and values [B, S, G, head_dim]."""
        crosses = self.config.has_cross
        attention = self.encoder_decoder_attention if crosses else self.self_attention
        return attention.keys_values(encoded)

    def pass_by(self, x: Array, cache: KVCache, layer: int, positions: Array | None) -> KVCache:
        """Writes the keys and values of the stream [B, T, D], and computes nothing else."""
        y = x if self.config.norms_behind else self.pre_self_attention_layer_norm(x)
        return cache.write(layer, *self.self_attention.keys_values(y, positions))


class TransformerStack(nn.Module):
    config: Architecture
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill

    @nn.nowrap
    def position_table(self) -> Embedding:
        c = self.config
        return Embedding(c.num_positions or 0, c.emb_dim, c.dtype, rows="positions", spread=SPREAD)

    def placed(self, x: Array, positions: Array) -> Array:
        """Returns the stream [B, T, D] plus the table's rows of its positions [B, T] int32.

        Positions after the table's end get its last row: only tokens that a text has no room for
        have such positions.
        """
        c = self.config
        if c.num_positions is None:
            return x
        rows = jnp.minimum(positions + c.first_position, c.num_positions - 1)
        if c.sinusoidal:
            return x + jnp.asarray(sinusoids(c.num_positions, c.emb_dim), x.dtype)[rows]
        return x + self.position_embedder(rows)


class Encoder(TransformerStack):
    layer_type: ClassVar[type[EncoderLayer]] = EncoderLayer

    def setup(self):
        c, sizes, kernels = self.config, self.config.encoder, self.kernels[1]
        layer, same = layer_class(self.layer_type), (kernels, kernels)
        self.layers = [layer(c, sizes, *same, c.is_local(i)) for i in range(sizes.layers)]
        if not c.norms_behind:
            self.encoder_norm = norm_of(c, kernels)
        if c.has_input_positions and not c.sinusoidal:
            self.position_embedder = self.position_table()

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer, from embeddings [B, S, D]."""
        return self.placed(x, positions) if self.config.has_input_positions else x

    def biases(self, positions: Array, inputs_mask: Array) -> list[Array]:
        """Returns the biases of each layer's attention logits, broadcast to [B, H, S, S]."""
        return [masked(inputs_mask[:, None])[:, None]] * len(self.layers)

    def __call__(self, x: Array, inputs_mask: Array) -> Array:
        """Maps embeddings [B, S, D] and a mask [B, S] bool to [B, S, D]."""
        positions = jnp.arange(inputs_mask.shape[1], dtype=jnp.int32)[None]
        x = self.enter(x, positions)
        biases = self.biases(positions, inputs_mask)
        for layer, bias in zip(self.layers, biases, strict=True):
            x = layer(x, positions, bias)
        return x if self.config.norms_behind else self.encoder_norm(x)


class Decoder(TransformerStack):
    has_head: bool = False  # whether it, not the token table, projects to the logits
    fused: Fused | None = None  # the kernels that a family may run its layers with
    layer_type: ClassVar[type[DecoderLayer]] = DecoderLayer

    def setup(self):
        c, sizes, kernels = self.config, self.config.decoder, self.kernels[0]
        layer = layer_class(self.layer_type, static=(3,))
        self.layers = [layer(c, sizes, *self.kernels, c.is_local(i)) for i in range(sizes.layers)]
        if not c.norms_behind:
            self.decoder_norm = norm_of(c, kernels)
        if c.num_positions is not None and not c.sinusoidal:
            self.position_embedder = self.position_table()
        if c.table_dim is not None:
            axes = ("embed", "embed_out")
            self.project_in = Dense(c.emb_dim, axes, c.dtype, kernels=kernels)
            self.project_out = Dense(c.table_dim, axes, c.dtype, kernels=kernels)
        if self.has_head:
            scaled = c.scales_logits and c.logits_via_embedding
            self.logits_dense = Logits(c.vocab_size, scaled, of_logits(kernels), c.head_ids)

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer, from the tokens' rows [B, T, table_dim]."""
        x = x if self.config.table_dim is None else self.project_in(x)
        return self.placed(x, positions)

    def leave(self, stream: Array) -> Array:
        """Maps the stream after a layer to the states that logits are projected from."""
        x = stream if self.config.norms_behind else self.decoder_norm(stream)
        return x if self.config.table_dim is None else self.project_out(x)

    def cross_keys_values(self, encoded: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns each layer's keys [B, G, head_dim, S] and values [B, G, S, head_dim] of the
        encoder's output [B, S, D]."""
        pairs = [layer.cross_keys_values(encoded) for layer in self.layers]
        keys, values = zip(*pairs, strict=True)
        return tuple(jnp.moveaxis(x, 1, 3) for x in keys), tuple(x.swapaxes(1, 2) for x in values)

    def biases(self, seen: View, layers: range) -> list[Array]:
        """Returns the biases of attention logits of each layer, broadcast to [B, H, T, C]."""
        return [masked(seen.visible)[:, None]] * len(layers)

    def __call__(
        self,
        x: Array,
        cache: KVCache,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        embedded: bool = False,
    ) -> tuple[Array, KVCache]:
        """Runs all layers, or layers a .. b - 1, on the input x [B, T, D] of the first of them.

        If `embedded`, x has the tokens' rows of the token table.
        """
        cache = cache.placed()
        seen = cache.view(x.shape[1], ancestors)
        crosses = bool(cache.cross_keys)
        cross_bias = masked(cache.inputs_mask[:, None, None, :]) if crosses else None
        x = self.enter(x, seen.queries) if embedded else x
        every = range(self.config.num_decoder_layers)
        which = every if layers is None else every[slice(*layers)]
        blocks = [BlockInputs(seen.queries, bias, cross_bias) for bias in self.biases(seen, which)]
        fused = self.fused if layers is None and ancestors is None else None
        x, cache = self.run(x, cache, which, blocks, fused)
        return x, cache.rewind(cache.length + x.shape[1])

    def run(
        self,
        x: Array,
        cache: KVCache,
        layers: range,
        blocks: list[BlockInputs],
        fused: Fused | None,
    ) -> tuple[Array, KVCache]:
        """Runs `layers`; a family may do so with the kernels that `fused` names."""
        for i, block in zip(layers, blocks, strict=True):
            x, cache = self.layers[i](x, cache, i, block)
        return x, cache
