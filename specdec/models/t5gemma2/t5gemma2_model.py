"""T5Gemma, version 2, by its differences from version 1.

Queries and keys have norms. The decoder has one attention over outputs and inputs, whose keys share
one softmax. One table serves the encoder, the decoder and the logits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveFloat, PositiveInt
from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.transformer import Attention, BlockInputs, Decoder, DecoderLayer, Encoder
from specdec.models.contract.cache import KVCache
from specdec.models.layers import rowwise
from specdec.models.layers.attention import MIX, AttentionPolicy, folded, unfolded
from specdec.models.layers.layers import parameter
from specdec.models.layers.products import precision
from specdec.models.t5gemma.t5gemma_model import (
    GemmaDecoder,
    GemmaEncoder,
    GemmaNetwork,
    T5Gemma,
    T5GemmaConfig,
    rates,
)
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class T5Gemma2Config(T5GemmaConfig):
    """The architecture of the text part of a T5Gemma 2 (Zhang et al. 2025, 2512.14856).

    Both stacks are Gemma 3's, of one width. The other fields are those of version 1, without a cap
    of attention logits.

    Args:
      window: the number of tokens that a token attends to in local layers, with itself: before it
        in the decoder, on both sides in the encoder.
      rope_theta: the base of the wavelengths of rotary positions in global layers.
      local_rope_theta: the base of these wavelengths in local layers.
      rope_factor: the number that positions are divided by in global layers.
      pattern: every `pattern`-th layer is global; the others are local.
      end_of_image_id: the id after a picture, whose embedding is not in the token table.
    """

    window: PositiveInt = 512
    attention_cap: PositiveFloat | None = None
    logits_cap: PositiveFloat | None = None
    rope_theta: PositiveFloat = 1_000_000.0
    local_rope_theta: PositiveFloat = 10_000.0
    rope_factor: PositiveFloat = 1.0
    pattern: PositiveInt = 6
    end_of_image_id: NonNegativeInt = dataclasses.field(default=256_000, repr=False)

    norms_heads: ClassVar[bool] = True
    has_cross: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.attention_cap is not None:
            raise ValueError(
                f"T5Gemma2Config.attention_cap is {self.attention_cap}, and version 2 has no cap; "
                "give None"
            )
        if self.encoder_emb_dim != self.emb_dim:
            raise ValueError(
                f"T5Gemma2Config.encoder_emb_dim is {self.encoder_emb_dim} and emb_dim "
                f"{self.emb_dim}, and both stacks share a token table; give one width"
            )

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The numbers of tokens before and after a token in the window of local encoder layers."""
        return (self.window + 1) // 2 - 1, self.window // 2

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, attends only to a window of tokens."""
        return (layer + 1) % self.pattern != 0

    def rotary_rates(self, head_dim: int, local: bool) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        if local:
            return rates(self.local_rope_theta, head_dim)
        return rates(self.rope_theta, head_dim) / np.float32(self.rope_factor)


class Keys(NamedTuple):
    """A set of keys, with their values and biases, that queries attend to."""

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


class MergedAttention(Attention):
    def over_cache(
        self, x: Array, cache: KVCache, layer: int, block: BlockInputs
    ) -> tuple[Array, KVCache]:
        """Writes x to a layer's cache; returns attention over outputs and inputs, and the cache."""
        cache = cache.write(layer, *self.keys_values(x, block.positions))
        outputs = Keys(cache.keys[layer], cache.values[layer], block.bias)
        assert block.cross_bias is not None, "the cache has inputs"
        cross = cache.cross_keys[layer], cache.cross_values[layer], block.cross_bias
        together = len(x) // len(block.cross_bias)  # samples that share the keys of their input
        keys, values, seen = (jnp.repeat(array, together, axis=0) for array in cross)
        inputs = Keys(keys, values, seen, transposed=True)
        return self.over_both(x, block.positions, outputs, inputs), cache

    def over_both(self, x: Array, positions: Array, outputs: Keys, inputs: Keys) -> Array:
        """Returns attention [B, T, D] of x [B, T, D] over outputs and inputs, in one softmax."""
        query, by_row = self.queries(x, positions), self.kernels.int8_tokens
        return self.mapped(attend_merged(query, (outputs, inputs), by_row))


class MergedLayer(DecoderLayer):
    attention_class: ClassVar[type[Attention]] = MergedAttention


class MergedDecoder(GemmaDecoder):
    layer_type: ClassVar[type[DecoderLayer]] = MergedLayer


class MergedNetwork(GemmaNetwork):
    config: T5Gemma2Config
    encoder_class: ClassVar[type[Encoder]] = GemmaEncoder
    decoder_class: ClassVar[type[Decoder]] = MergedDecoder

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


@dataclasses.dataclass(frozen=True)
class T5Gemma2(T5Gemma):
    """The text part of a T5Gemma 2 as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5Gemma2Config
    config_class: ClassVar[type[T5GemmaConfig]] = T5Gemma2Config
    network_class: ClassVar[type[StackNetwork]] = MergedNetwork
