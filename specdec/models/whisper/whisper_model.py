"""Whisper as a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.stack import ReadsEncoder
from specdec.models.contract.cache import kv_bytes
from specdec.models.whisper.whisper_config import WhisperConfig
from specdec.models.whisper.whisper_network import WhisperNetwork
from specdec.types import Array


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
        slots += self.spare + self.config.input_positions
        shape = (rows, self.config.num_heads, slots, self.config.head_dim)
        return self.num_layers * kv_bytes(shape, self.config.dtype, self.axis_rules, mesh)
