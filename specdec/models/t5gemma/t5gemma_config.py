"""T5Gemma's architecture, in plain values."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveFloat, PositiveInt, TokenIds
from specdec.models.bases.architecture import Architecture, StackSizes
from specdec.models.layers.layers import DType, mean_of, parameter
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
      window: the tokens that even layers see, up to a token and with it. The encoder sees as many
        before it and behind it, as in transformers 5; version 4 has one fewer.
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
        """The number of tokens before and behind a token that local layers of the encoder see."""
        return self.window, self.window

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, sees a window."""
        return layer % 2 == 0

    def rotary_rates(self, head_dim: int, local: bool) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        return rates(self.rope_theta, head_dim)

    def query_scale(self, head_dim: int) -> float:
        """Returns the factor of queries, which does not depend on the size of a head."""
        return self.query_scalar**-0.5


def rates(theta: float, head_dim: int) -> np.ndarray:
    """Returns theta ** (-2 i / head_dim) for i = 0, 1, .. in float32."""
    half = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    return (1.0 / np.float32(theta) ** half).astype(np.float32)
