"""Whisper's architecture, and the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specdec.common.values import Checked, NonNegativeInt, PositiveInt, TokenIds
from specdec.models.cache import kv_bytes
from specdec.models.decoder_only import NO_PAD, PadId
from specdec.models.kept_parts import Numbers
from specdec.models.layers import DType
from specdec.models.stack import ReadsEncoder
from specdec.models.whisper.whisper_network import STRIDE, WhisperNetwork
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class WhisperConfig(Checked):
    """The architecture of a Whisper (Radford et al. 2022, 2212.04356).

    Both stacks have the same width, heads and MLPs. Norms are layer norms before each sub-layer.

    Args:
      vocab_size: V.
      emb_dim: D, the width of the residual stream.
      num_heads: attention heads, a divisor of `emb_dim`.
      mlp_dim: hidden units of an MLP.
      num_encoder_layers: the number of the encoder's layers.
      num_decoder_layers: the number of the decoder's layers.
      mel_bins: the frequencies of a frame of sound.
      input_positions: the positions of the encoder, one for two frames.
      context: the positions of the decoder, and so the longest output in tokens.
      encoded_dim: the width of the target's encoder output, which the decoder reads. There is then
        no encoder, and `num_encoder_layers` is 0. None for a model with an encoder.
      head_ids: the ids, ascending, that have a row in the output head; the logits of the others are
        -inf. The head is then a separate array, even if logits are tied.
      logits_via_embedding: whether the token table also projects to the logits.
      dtype: of matrix products and of the KV cache, 'float32' or 'bfloat16'.
      decoder_start_id: the id that outputs start from.
      pad_id: the id that outputs are padded with; -1, which no token has, if the vocabulary has
        none.
      stop_ids: the ids that end a text.
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

    def __post_init__(self):
        object.__setattr__(self, "dtype", jnp.dtype(self.dtype).name)
        super().__post_init__()
        if self.emb_dim % self.num_heads:
            raise ValueError(
                f"WhisperConfig.num_heads is {self.num_heads}, which does not divide emb_dim "
                f"{self.emb_dim}; give a divisor"
            )
        if (self.num_encoder_layers == 0) != (self.encoded_dim is not None):
            raise ValueError(
                f"WhisperConfig.num_encoder_layers is {self.num_encoder_layers} and encoded_dim is "
                f"{self.encoded_dim}; give 0 layers and the width of another encoder, or some "
                "layers and None"
            )
        if self.head_ids is not None and self.head_ids[-1] >= self.vocab_size:
            raise ValueError(
                f"WhisperConfig.head_ids goes up to {self.head_ids[-1]}; give ids below "
                f"{self.vocab_size}"
            )
        if self.pad_id in self.stop_ids:
            raise ValueError(
                f"WhisperConfig.pad_id is {self.pad_id}, which is also one of stop_ids "
                f"{self.stop_ids}; give -1"
            )

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.emb_dim // self.num_heads

    @property
    def head_is_table(self) -> bool:
        """Whether the token table also projects to the logits."""
        return self.logits_via_embedding and self.head_ids is None

    @property
    def frames(self) -> int:
        """The frames of an input."""
        return STRIDE * self.input_positions


@dataclasses.dataclass(frozen=True)
class Whisper(ReadsEncoder):
    """A Whisper as a `Model`.

    Its inputs are log-mel features [B, mel_bins, frames] float32, see `tasks.sound`. A row of
    zeros is padding: silence has other values.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: WhisperConfig
    config_class: ClassVar[type[WhisperConfig]] = WhisperConfig
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

    def network(self) -> WhisperNetwork:
        """Returns the module, in this model's layout."""
        stored = self.layout, self.orders, self.weights
        return WhisperNetwork(self.config, *stored, self.widened)

    def example(self) -> tuple[Array, Array]:
        """Returns the features of one sound, and an output of one token."""
        c = self.config
        sound = jnp.zeros([1, c.mel_bins, c.frames], jnp.float32)
        return sound, jnp.zeros([1, 1], jnp.int32)

    def inputs_shape(self, rows: int, length: int) -> jax.ShapeDtypeStruct:
        """Returns the shape of features, all of whose inputs have one length."""
        return jax.ShapeDtypeStruct((rows, self.config.mel_bins, self.config.frames), jnp.float32)

    def encoded_shape(self, inputs: Array) -> tuple[int, int]:
        """Returns rows and positions of the encoder's output."""
        return len(inputs), self.config.input_positions

    def active(self, inputs: Array) -> Array:
        """Returns [B] bool, the rows that have a number other than 0."""
        return jnp.any(inputs != 0, axis=(1, 2))

    def check_arrays(self, inputs: Array) -> None:
        """Raises ValueError, at tracing, for inputs that are not [B, mel_bins, frames] float32."""
        bins, frames = self.config.mel_bins, self.config.frames
        found = type(inputs).__name__
        if isinstance(inputs, jax.Array | np.ndarray):
            if inputs.dtype == jnp.float32 and inputs.shape[1:] == (bins, frames):
                return
            found = f"{inputs.dtype}{list(inputs.shape)}"
        raise ValueError(
            f"inputs are {found}; give float32 [rows, {bins}, {frames}], the log-mel features of "
            "whole windows"
        )

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values on one device; all inputs have one length."""
        slots += self.spare + self.config.input_positions
        shape = (rows, self.config.num_heads, slots, self.config.head_dim)
        return self.num_layers * kv_bytes(shape, self.config.dtype, self.axis_rules, mesh)
