"""The network of decoders without an encoder, which families differ in by their configs.

The names of parameters are those of T5X's decoder.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import PositiveFloat, PositiveInt, Rule, TokenIds, is_integer
from specdec.models.bases.architecture import Architecture
from specdec.models.bases.networks import SPREAD, StackNetwork
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import PromptCache
from specdec.models.layers.attention import MASKED, AttentionPolicy, attend_grouped
from specdec.models.layers.layers import (
    MLP,
    Dense,
    DType,
    Embedding,
    Logits,
    RMSNorm,
    constrain,
    layer_class,
)
from specdec.models.layers.products import Kernels
from specdec.models.placement.layouts import of_logits
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

    Attributes:
      norm: the class of norms.
      has_biases: whether all products have a bias.
      mlp_activations: one activation per projection of the MLP.
      norms_behind: whether a norm follows its sub-layer, and there is none at the end.
      num_positions: rows of a table of positions; None for rotary ones.
      first_position: the row of the first position.
      table_dim: the width of the token table, if it differs from D; the stream is projected from it
        and to it.
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

    norm: ClassVar[type[nn.Module]] = RMSNorm
    has_biases: ClassVar[bool] = False
    mlp_activations: ClassVar[tuple[str, ...]] = ("silu", "linear")
    first_position: ClassVar[int] = 0

    def __post_init__(self):
        super().__post_init__()
        name = type(self).__name__
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{name}.num_kv_heads is {self.num_kv_heads}, which does not divide num_heads "
                f"{self.num_heads}; give a divisor"
            )

    @property
    def norms_behind(self) -> bool:
        return False

    @property
    def num_positions(self) -> int | None:
        return None

    @property
    def table_dim(self) -> int | None:
        return None

    def rotary_rates(self) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        raise NotImplementedError


def rotated(x: Array, positions: Array, rates: np.ndarray) -> Array:
    """Returns heads turned by their positions (Su et al. 2021, 2104.09864, section 3.4).

    Args:
      x: [B, T, H, head_dim]. Number i and number i + head_dim / 2 make a pair.
      positions: [B, T] int32.
      rates: [head_dim / 2], see `DecoderConfig.rotary_rates`.
    """
    angles = positions[:, :, None, None].astype(jnp.float32) * rates[None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _norm(config: DecoderConfig, kernels: Kernels) -> nn.Module:
    norm_class: Any = config.norm
    return norm_class(config.dtype, config.layer_norm_epsilon, kernels.int8_tokens)


class SelfAttention(nn.Module):
    config: DecoderConfig
    kernels: Kernels

    def setup(self):
        c = self.config

        def dense(features: int, axes: tuple[str, str] = ("embed", "joined_kv")) -> Dense:
            return Dense(features, axes, c.dtype, kernels=self.kernels, bias=c.has_biases)

        self.query = dense(c.num_heads * c.head_dim)
        self.key = dense(c.num_kv_heads * c.head_dim)
        self.value = dense(c.num_kv_heads * c.head_dim)
        self.out = dense(c.emb_dim, ("joined_kv", "embed"))

    def write(self, x: Array, cache: PromptCache, layer: int, positions: Array) -> PromptCache:
        """Writes the keys and values of [B, T, D] at positions [B, T] into a layer's arrays."""
        key = self._split(self.key(x), self.config.num_kv_heads)
        value = self._split(self.value(x), self.config.num_kv_heads)
        return cache.write(layer, self._placed(key, positions), value)

    def __call__(self, x: Array, cache: PromptCache, layer: int, seen: View, mask: Array) -> Array:
        """Computes attention of [B, T, D] over the cache: [B, T, D]."""
        query = self._split(self.query(x), self.config.num_heads)
        query = self._placed(query, seen.queries)
        query *= np.asarray(1 / math.sqrt(self.config.head_dim), query.dtype)
        policy = AttentionPolicy.of(self.kernels)
        y = attend_grouped(query, cache.keys[layer], cache.values[layer], mask, policy)
        y = constrain(y, "batch", "length", "heads", "kv")
        return self.out(y.reshape(*y.shape[:2], -1))

    def _split(self, x: Array, heads: int) -> Array:
        # Else the heads that it is split into decide how a TPU wants to have the kernel.
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], heads, self.config.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")

    def _placed(self, x: Array, positions: Array) -> Array:
        if self.config.num_positions is not None:
            return x
        return rotated(x, positions, self.config.rotary_rates())


class PromptLayer(nn.Module):
    config: DecoderConfig
    kernels: Kernels

    def setup(self):
        c = self.config
        self.pre_self_attention_layer_norm = _norm(c, self.kernels)
        self.self_attention = SelfAttention(c, self.kernels)
        self.pre_mlp_layer_norm = _norm(c, self.kernels)
        sizes = c.mlp_dim, c.emb_dim, c.mlp_activations, c.dtype, self.kernels, c.has_biases
        self.mlp = MLP(*sizes)

    def __call__(
        self, x: Array, cache: PromptCache, layer: int, seen: View, mask: Array
    ) -> tuple[Array, PromptCache]:
        def attend(y: Array) -> Array:
            nonlocal cache
            cache = self.self_attention.write(y, cache, layer, seen.queries)
            return self.self_attention(y, cache, layer, seen, mask)

        x = self._added(x, self.pre_self_attention_layer_norm, attend)
        return self._added(x, self.pre_mlp_layer_norm, self.mlp), cache

    def pass_by(self, x: Array, cache: PromptCache, layer: int, positions: Array) -> PromptCache:
        y = x if self.config.norms_behind else self.pre_self_attention_layer_norm(x)
        return self.self_attention.write(y, cache, layer, positions)

    def _added(
        self, x: Array, norm: Callable[[Array], Array], part: Callable[[Array], Array]
    ) -> Array:
        """Returns the stream after a sub-layer, which is whole on every device."""
        y = norm(x + part(x)) if self.config.norms_behind else x + part(norm(x))
        return constrain(y, "batch", "length", "embed")


class PromptDecoder(nn.Module):
    config: DecoderConfig
    has_head: bool  # whether it, not the token table, projects to the logits
    kernels: tuple[Kernels, Kernels]  # of a step, of prefill, which is one too

    def setup(self):
        c, kernels = self.config, self.kernels[0]
        layer = layer_class(PromptLayer, static=(3,))
        self.layers = [layer(c, kernels) for _ in range(c.num_decoder_layers)]
        if not c.norms_behind:
            self.decoder_norm = _norm(c, kernels)
        if c.num_positions is not None:
            sizes = c.num_positions, c.emb_dim, c.dtype
            self.position_embedder = Embedding(*sizes, rows="positions", spread=SPREAD)
        dense = functools.partial(Dense, axes=("embed", "embed_out"), dtype=c.dtype)
        if c.table_dim is not None:
            self.project_in = dense(c.emb_dim, kernels=kernels)
            self.project_out = dense(c.table_dim, kernels=kernels)
        if self.has_head:
            self.logits_dense = Logits(c.vocab_size, kernels=of_logits(kernels), ids=c.head_ids)

    def enter(self, x: Array, positions: Array) -> Array:
        """Returns the stream before the first layer.

        Args:
          x: [B, T, table_dim], the tokens' rows.
          positions: [B, T] int32. Those behind the table's end have its last row: they are read
            only by tokens that a text has no room for.
        """
        c = self.config
        x = x if c.table_dim is None else self.project_in(x)
        if c.num_positions is not None:
            rows = jnp.minimum(positions + c.first_position, c.num_positions - 1)
            x += self.position_embedder(rows)
        return x

    def leave(self, stream: Array) -> Array:
        """Returns the states that logits are projected from, from the stream after a layer."""
        x = stream if self.config.norms_behind else self.decoder_norm(stream)
        return x if self.config.table_dim is None else self.project_out(x)

    def __call__(
        self, x: Array, cache: PromptCache, seen: View, layers: range
    ) -> tuple[Array, PromptCache]:
        """Runs some of the layers on the input of the first of them, [B, T, D]."""
        cache = cache.placed()
        mask = jnp.where(seen.visible, 0.0, MASKED)[:, None]
        for i in layers:
            x, cache = self.layers[i](x, cache, i, seen, mask)
        return x, cache.rewind(cache.length + x.shape[1])


class DecoderOnly(StackNetwork):
    """The network; `prompts.PromptModel` is its interface."""

    config: DecoderConfig
    decoder_class: ClassVar[type[PromptDecoder]] = PromptDecoder

    @nn.nowrap
    def _table_dim(self) -> int:
        return self.config.table_dim or self.config.emb_dim

    def __call__(self, tokens: Array, cache: PromptCache) -> ModelOutput:
        return self.decode(tokens, cache)[0]
