"""Whisper as a model (Radford et al. 2022, 2212.04356), with T5X's names for parameters of a T5."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveInt, TokenIds
from specdec.models.bases.architecture import NO_PAD, Architecture, PadId
from specdec.models.bases.networks import EncoderDecoderNetwork, StackNetwork
from specdec.models.bases.stack import EncoderDecoder
from specdec.models.bases.transformer import Attention, Encoder, EncoderLayer, residual, sinusoids
from specdec.models.layers.attention import attend_to_all
from specdec.models.layers.layers import ACTIVATIONS, DType, LayerNorm, fan_in, parameter
from specdec.models.layers.products import precision
from specdec.models.sizes.kept_parts import Numbers
from specdec.types import Array

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
        """The number of frames of an input."""
        return STRIDE * self.input_positions


_WIDTH = 3  # frames that a filter reads


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


class SoundAttention(Attention):
    def over_itself(self, x: Array, positions: Array, bias: Array) -> Array:
        """Returns attention of each position of x [B, S, D] over all positions, [B, S, D]."""
        return self.mapped(attend_to_all(self.queries(x), *self.keys_values(x)))


class SoundLayer(EncoderLayer):
    attention_class: ClassVar[type[Attention]] = SoundAttention


class SoundEncoder(Encoder):
    config: WhisperConfig
    layer_type: ClassVar[type[EncoderLayer]] = SoundLayer

    def setup(self):
        super().setup()
        c = self.config
        self.convolution_0 = Convolution(c.emb_dim, 1, c.dtype)
        self.convolution_1 = Convolution(c.emb_dim, STRIDE, c.dtype)
        shape = (c.input_positions, c.emb_dim)
        self.positions = parameter(self, "positions", _waves, ("positions", "embed"), shape)

    def enter(self, x: Array, positions: Array) -> Array:
        """Maps features [B, mel_bins, frames] to the stream before the first layer, [B, S, D]."""
        x = self.convolution_1(self.convolution_0(x.swapaxes(1, 2)))
        return residual(x + self.positions.astype(x.dtype)[None])


class WhisperNetwork(EncoderDecoderNetwork):
    config: WhisperConfig
    encoder_class: ClassVar[type[Encoder]] = SoundEncoder

    def embed_inputs(self, inputs: Array) -> Array:
        return inputs

    @nn.nowrap
    def mask_of(self, inputs: Array) -> Array:
        return jnp.ones([len(inputs), self.config.input_positions], bool)


@dataclasses.dataclass(frozen=True)
class Whisper(EncoderDecoder):
    """A Whisper as a `Model`.

    Its inputs are log-mel features [B, mel_bins, frames] float32, see `tasks.sound`. A row of
    zeros is padding: silence has other values.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: WhisperConfig
    config_class: ClassVar[type[WhisperConfig]] = WhisperConfig
    network_class: ClassVar[type[StackNetwork]] = WhisperNetwork
    size_names: ClassVar[tuple[str, ...]] = (
        *("emb_dim", "num_heads", "mlp_dim"),
        *("num_encoder_layers", "num_decoder_layers"),
    )

    @property
    def cache_heads(self) -> int:
        return self.config.num_heads

    @property
    def longest_output(self) -> int:
        return self.config.context

    def example(self) -> tuple[Array, Array]:
        """Returns the features of one sound, and an output of one token."""
        c = self.config
        sound = jnp.zeros([1, c.mel_bins, c.frames], jnp.float32)
        return sound, jnp.zeros([1, 1], jnp.int32)

    def inputs_shape(self, rows: int, length: int) -> jax.ShapeDtypeStruct:
        """Returns the shape [rows, mel_bins, frames] of log-mel features, whatever the length."""
        return jax.ShapeDtypeStruct((rows, self.config.mel_bins, self.config.frames), jnp.float32)

    def encoded_shape(self, inputs: Array) -> tuple[int, int]:
        """Returns the numbers of rows and of positions of the encoder's output."""
        return len(inputs), self.config.input_positions

    def active(self, inputs: Array) -> Array:
        """Returns [B] bool, the rows that have a number other than 0."""
        return jnp.any(inputs != 0, axis=(1, 2))

    def check_arrays(self, inputs: Array) -> None:
        """Raises ValueError, at tracing, for inputs that are not [B, mel_bins, frames] float32."""
        bins, frames = self.config.mel_bins, self.config.frames
        kind = type(inputs).__name__
        if isinstance(inputs, jax.Array | np.ndarray):
            if inputs.dtype == jnp.float32 and inputs.shape[1:] == (bins, frames):
                return
            kind = f"{inputs.dtype}{list(inputs.shape)}"
        raise ValueError(
            f"inputs are {kind}; give float32 [rows, {bins}, {frames}], the log-mel features of "
            "whole windows"
        )

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values on one device; all inputs have one length."""
        return super().cache_bytes(rows, slots, self.config.input_positions, mesh)
