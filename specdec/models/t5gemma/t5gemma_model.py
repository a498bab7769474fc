"""T5Gemma, version 1, as a model, with T5X's names for the parameters that a T5 has too.

Both stacks are Gemma 2's (2408.00118): norms before and after each sub-layer, rotary positions,
grouped heads, soft caps, and a window in every other layer.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveFloat, PositiveInt, TokenIds
from specdec.models.bases.architecture import SPREAD, Architecture, StackSizes
from specdec.models.bases.networks import EncoderDecoderNetwork, StackNetwork, scaled
from specdec.models.bases.stack import EncoderDecoder
from specdec.models.bases.transformer import Decoder, Encoder, masked
from specdec.models.contract.blocks import View
from specdec.models.layers.attention import soft_capped
from specdec.models.layers.layers import DType, Embedding, mean_of, parameter
from specdec.models.sizes.kept_parts import Numbers
from specdec.types import Array

ENCODER = (
    *("encoder_emb_dim", "encoder_num_heads", "encoder_num_kv_heads", "encoder_head_dim"),
    *("encoder_mlp_dim", "num_encoder_layers"),
)  # in the order of `StackSizes`
DECODER = ("emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim", "num_decoder_layers")


class GemmaNorm(nn.Module):
    """Computes x / rms(x) * (1 + scale) in float32, over the last axis; see `RMSNorm`."""

    dtype: str
    epsilon: float
    by_row: bool = False
    axis: str = "embed"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = parameter(self, "scale", nn.initializers.zeros, (self.axis,), (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(mean_of(jnp.square(x), self.by_row) + self.epsilon)
        scale = jnp.expand_dims(1 + scale.astype(jnp.float32), tuple(range(x.ndim - 1)))
        return (x * scale).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class T5GemmaConfig(Architecture):
    """The architecture of a T5Gemma (Zhang et al. 2025, 2504.06225).

    Both stacks are Gemma 2's. They may differ in all sizes.

    The other fields are those of `Architecture`; the sizes of the encoder have names of their own.

    Args:
      query_scalar: queries are divided by its square root.
      window: the number of tokens that a token attends to in even decoder layers, with itself. In
        the encoder it is this number on either side, as in transformers 5; version 4 has one fewer.
      attention_cap: the soft cap of attention logits; None for none.
      logits_cap: the soft cap of logits; None for none.
      rope_theta: the base of the wavelengths of rotary positions.
    """

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    mlp_dim: PositiveInt
    num_decoder_layers: PositiveInt
    encoder_emb_dim: PositiveInt
    encoder_num_heads: PositiveInt
    encoder_num_kv_heads: PositiveInt
    encoder_head_dim: PositiveInt
    encoder_mlp_dim: PositiveInt
    num_encoder_layers: NonNegativeInt
    query_scalar: PositiveFloat = 256.0
    window: PositiveInt = 4096
    attention_cap: PositiveFloat | None = 50.0
    logits_cap: PositiveFloat | None = 30.0
    rope_theta: PositiveFloat = 10_000.0
    logits_via_embedding: bool = True
    dtype: DType = "float32"
    layer_norm_epsilon: PositiveFloat = 1e-6
    encoded_dim: PositiveInt | None = None
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)
    decoder_start_id: NonNegativeInt = dataclasses.field(default=2, repr=False)
    pad_id: NonNegativeInt = dataclasses.field(default=0, repr=False)
    stop_ids: TokenIds = dataclasses.field(default=(1,), repr=False)

    norm: ClassVar[type[nn.Module]] = GemmaNorm
    norms_around: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    scales_embeddings: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        self.check_encoder()

    @property
    def encoder(self) -> StackSizes:
        """The sizes of the encoder."""
        return StackSizes(*(getattr(self, name) for name in ENCODER))

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The numbers of tokens before and after a token in the window of local encoder layers."""
        return self.window, self.window

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, attends only to a window of tokens."""
        return layer % 2 == 0

    def rotary_rates(self, head_dim: int, local: bool) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        return rates(self.rope_theta, head_dim)

    def query_scale(self, head_dim: int) -> float:
        """Returns the factor that queries are multiplied by, whatever the size of a head."""
        return self.query_scalar**-0.5


def rates(theta: float, head_dim: int) -> np.ndarray:
    """Returns theta ** (-2 i / head_dim) for i = 0, 1, .. in float32."""
    half = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    return (1.0 / np.float32(theta) ** half).astype(np.float32)


class GemmaEncoder(Encoder):
    config: T5GemmaConfig

    def biases(self, positions: Array, inputs_mask: Array) -> list[Array]:
        c, visible = self.config, inputs_mask[:, None]
        ahead = positions[:, None] - positions[:, :, None]
        before, behind = c.encoder_window
        near = visible & ((ahead >= -before) & (ahead <= behind))
        masks = masked(visible)[:, None], masked(near)[:, None]
        return [masks[c.is_local(i)] for i in range(c.num_encoder_layers)]


class GemmaTableEncoder(GemmaEncoder):
    """An encoder with a token table of its own."""

    def setup(self):
        super().setup()
        c = self.config
        self.token_embedder = Embedding(c.vocab_size, c.encoder.emb_dim, c.dtype, spread=SPREAD)

    def embed(self, inputs: Array) -> Array:
        """Maps [B, S] int32 to scaled embeddings [B, S, D]."""
        return scaled(self.token_embedder(jnp.maximum(inputs, 0)))


class GemmaDecoder(Decoder):
    config: T5GemmaConfig

    def biases(self, seen: View, layers: range) -> list[Array]:
        near = seen.queries[:, :, None] - seen.keys[:, None] < self.config.window
        masks = masked(seen.visible)[:, None], masked(seen.visible & near)[:, None]
        return [masks[self.config.is_local(i)] for i in layers]


class GemmaNetwork(EncoderDecoderNetwork):
    config: T5GemmaConfig
    encoder_class: ClassVar[type[Encoder]] = GemmaTableEncoder
    decoder_class: ClassVar[type[Decoder]] = GemmaDecoder

    def embed_inputs(self, inputs: Array) -> Array:
        return self.encoder.embed(inputs)

    def logits(self, hidden: Array) -> Array:
        logits = super().logits(hidden)
        capped = soft_capped(logits, self.config.logits_cap)
        if self.config.head_ids is None:
            return capped
        return jnp.where(jnp.isneginf(logits), logits, capped)  # of ids that the head lacks


@dataclasses.dataclass(frozen=True)
class T5Gemma(EncoderDecoder):
    """A T5Gemma as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5GemmaConfig
    config_class: ClassVar[type[T5GemmaConfig]] = T5GemmaConfig
    network_class: ClassVar[type[StackNetwork]] = GemmaNetwork
    size_names: ClassVar[tuple[str, ...]] = (*DECODER, *ENCODER)

    @property
    def cache_heads(self) -> int:
        """The greatest common divisor of the numbers of key heads of both stacks."""
        return math.gcd(self.config.num_kv_heads, self.config.encoder_num_kv_heads)
