"""The network of T5Gemma, version 2, by its differences from version 1.

Queries and keys have norms. The decoder has one attention over outputs and inputs, whose keys share
one softmax. One table serves the encoder, the decoder and the logits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.contract.cache import KVCache
from specdec.models.layers import rowwise
from specdec.models.layers.attention import MIX, AttentionPolicy, folded, unfolded
from specdec.models.layers.layers import parameter
from specdec.models.layers.products import precision
from specdec.models.t5gemma.t5gemma_network import (
    GemmaAttention,
    GemmaDecoder,
    GemmaEncoder,
    GemmaLayer,
    GemmaNetwork,
    GemmaNorm,
    added,
)
from specdec.models.t5gemma2.t5gemma2_config import T5Gemma2Config
from specdec.types import Array


class Keys(NamedTuple):
    """A set of keys that queries attend to."""

    keys: Array  # [B, G, C, head_dim], or [B, G, head_dim, C] if they are transposed
    values: Array  # [B, G, C, head_dim]
    bias: Array  # [B, 1, 1 or T, C] float32
    transposed: bool = False


def attend_merged(query: Array, sets: Sequence[Keys], by_row: bool = False) -> Array:
    """Returns the attention of queries over several sets of keys, under one softmax.

    The sets are not joined, because that would copy the cache in every call.
    """
    tokens, heads, groups = query.shape[1], query.shape[2], sets[0].values.shape[1]
    each, exact = heads // groups, precision(query.dtype)
    query, width = folded(query, groups), tokens * each
    if by_row and width == 1:
        query = jnp.pad(query, ((0, 0), (0, 1), (0, 0), (0, 0)))
    logits = []
    wide = {"precision": exact, "preferred_element_type": jnp.float32}
    for part in sets:
        bias = part.bias if part.bias.shape[2] == 1 else jnp.repeat(part.bias, each, axis=2)
        scores = AttentionPolicy(part.transposed).scores
        logits.append(jnp.einsum(scores, query, part.keys, **wide) + bias)
    softmax = rowwise.softmax if by_row else jax.nn.softmax
    weights = softmax(jnp.concatenate(logits, axis=-1)).astype(query.dtype)
    ends = np.cumsum([part.values.shape[2] for part in sets])[:-1]
    mixed = [
        jnp.einsum(MIX, share, part.values, precision=exact)
        for part, share in zip(sets, jnp.split(weights, ends, axis=-1), strict=True)
    ]
    return unfolded(functools.reduce(jnp.add, mixed).swapaxes(1, 2)[:, :width], tokens)


class NormedAttention(GemmaAttention):
    """Attention with norms of queries and keys, which come before rotary positions."""

    def setup(self):
        super().setup()
        self.query_norm = GemmaNorm(self.config, self.kernels, "kv")
        self.key_norm = GemmaNorm(self.config, self.kernels, "kv")

    def normed_queries(self, x: Array) -> Array:
        return self.query_norm(x)

    def normed_keys(self, x: Array) -> Array:
        return self.key_norm(x)

    def over_both(self, x: Array, positions: Array, outputs: Keys, inputs: Keys) -> Array:
        """Computes attention of x [B, T, D] over outputs and inputs: [B, T, D]."""
        query, by_row = self.queries(x, positions), self.kernels.int8_tokens
        return self.mapped(attend_merged(query, (outputs, inputs), by_row))


class NormedLayer(GemmaLayer):
    attention_class: ClassVar[type[GemmaAttention]] = NormedAttention


class MergedLayer(NormedLayer):
    """A layer of the decoder."""

    def decode(
        self, x: Array, cache: KVCache, layer: int, positions: Array, mask: Array, cross_mask: Array
    ) -> tuple[Array, KVCache]:
        y = self.pre_self_attention_layer_norm(x)
        cache = cache.write(layer, *self.self_attention.keys_values(y, positions))
        outputs = Keys(cache.keys[layer], cache.values[layer], mask)
        cross = cache.cross_keys[layer], cache.cross_values[layer], cross_mask
        together = len(x) // len(cross_mask)  # samples that share the keys of their input
        keys, values, seen = (jnp.repeat(array, together, axis=0) for array in cross)
        inputs = Keys(keys, values, seen, transposed=True)
        y = self.self_attention.over_both(y, positions, outputs, inputs)
        return self.with_mlp(added(x, self.post_self_attention_layer_norm(y))), cache

    def cross_keys_values(self, encoded: Array) -> tuple[Array, Array]:
        return self.self_attention.keys_values(encoded, None)


class NormedEncoder(GemmaEncoder):
    layer_type: ClassVar[type[GemmaLayer]] = NormedLayer
    has_table: ClassVar[bool] = False


class MergedDecoder(GemmaDecoder):
    layer_type: ClassVar[type[GemmaLayer]] = MergedLayer
    cross: ClassVar[bool] = False


class MergedNetwork(GemmaNetwork):
    """The network; `T5Gemma2` is its interface."""

    config: T5Gemma2Config
    encoder_class: ClassVar[type[GemmaEncoder]] = NormedEncoder
    decoder_class: ClassVar[type[GemmaDecoder]] = MergedDecoder

    def setup(self):
        super().setup()
        self.end_of_image = EndOfImage(self.config.emb_dim)

    def embed_inputs(self, inputs: Array) -> Array:
        return self.embed(inputs)

    def embed(self, tokens: Array) -> Array:
        x, end = super().embed(tokens), self.config.end_of_image_id
        row = self.end_of_image().astype(x.dtype)
        return jnp.where((tokens == end)[..., None], row[None, None], x)


class EndOfImage(nn.Module):
    """The embedding of the end of a picture, which is not scaled."""

    emb_dim: int

    @nn.compact
    def __call__(self) -> Array:
        return parameter(self, "embedding", nn.initializers.zeros, ("embed",), (self.emb_dim,))
