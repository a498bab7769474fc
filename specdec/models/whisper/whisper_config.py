"""Whisper's architecture, in plain values."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveInt, TokenIds
from specdec.models.bases.architecture import Architecture
from specdec.models.bases.decoder_only import NO_PAD, PadId
from specdec.models.layers.layers import DType, LayerNorm
from specdec.models.sizes.kept_parts import Numbers

STRIDE = 2  # frames for each position of the encoder


@dataclasses.dataclass(frozen=True)
class WhisperConfig(Architecture):
    """The architecture of a Whisper (Radford et al. 2022, 2212.04356).

    Both stacks have the same width, heads and MLPs. Norms are layer norms before each sub-layer.

    The other fields are those of `Architecture`.

    Args:
      mel_bins: the frequencies of a frame of sound.
      input_positions: the positions of the encoder, one for two frames.
      context: the positions of the decoder, and so the longest output in tokens.
    """

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    mlp_dim: PositiveInt
    num_encoder_layers: NonNegativeInt
    num_decoder_layers: PositiveInt
    mel_bins: PositiveInt = 80
    input_positions: PositiveInt = 1500
    context: PositiveInt = 448
    encoded_dim: PositiveInt | None = None
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)
    logits_via_embedding: bool = True
    dtype: DType = "float32"
    decoder_start_id: NonNegativeInt = dataclasses.field(default=50258, repr=False)
    pad_id: PadId = dataclasses.field(default=NO_PAD, repr=False)
    stop_ids: TokenIds = dataclasses.field(default=(50257,), repr=False)

    norm: ClassVar[type[nn.Module]] = LayerNorm
    layer_norm_epsilon: ClassVar[float] = 1e-5
    has_biases: ClassVar[bool] = True
    mlp_activations: ClassVar[tuple[str, ...]] = ("exact_gelu",)
    pad_remedy: ClassVar[str] = "-1"

    def __post_init__(self):
        super().__post_init__()
        if self.emb_dim % self.num_heads:
            raise ValueError(
                f"WhisperConfig.num_heads is {self.num_heads}, which does not divide emb_dim "
                f"{self.emb_dim}; give a divisor"
            )
        self.check_encoder()

    @property
    def num_positions(self) -> int:
        """The rows of the decoder's table of positions."""
        return self.context

    def has_bias(self, name: str) -> bool:
        """Returns whether a product of attention has a bias, which all but "key" have."""
        return name != "key"

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.emb_dim // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        """The heads of keys and values, as many as of queries."""
        return self.num_heads

    @property
    def frames(self) -> int:
        """The frames of an input."""
        return STRIDE * self.input_positions
