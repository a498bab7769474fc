"""LLaMA's architecture, and the model."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np

from specdec.common.values import PositiveFloat
from specdec.models.bases.prompts import DecoderConfig, PromptModel

Scaling = Literal["default", "linear", "llama3"]


@dataclasses.dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """The architecture of a LLaMA (Touvron et al. 2023, 2302.13971 and 2307.09288).

    Norms are RMS norms, positions are rotary, the MLP is gated by SiLU, and nothing has a bias. The
    other fields are those of `DecoderConfig`.

    Args:
      rope_theta: the base of the wavelengths of rotary positions.
      rope_scaling: how wavelengths are lengthened for longer contexts: "linear" multiplies all by
        `rope_factor`; "llama3" only the long ones (Dubey et al. 2024, 2407.21783).
      rope_factor: the factor of wavelengths.
      rope_low_factor: "llama3" multiplies wavelengths above `rope_context` / this number.
      rope_high_factor: "llama3" keeps wavelengths below `rope_context` / this number; between the
        two limits the factor changes smoothly.
      rope_context: tokens of the context before it was lengthened.
    """

    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Scaling = "default"
    rope_factor: PositiveFloat = 1.0
    rope_low_factor: PositiveFloat = 1.0
    rope_high_factor: PositiveFloat = 4.0
    rope_context: PositiveFloat = 8192.0

    is_rotary: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.rope_scaling == "llama3" and self.rope_low_factor >= self.rope_high_factor:
            raise ValueError(
                f"LlamaConfig.rope_low_factor is {self.rope_low_factor}; give a number below "
                f"rope_high_factor {self.rope_high_factor}"
            )

    def rotary_rates(self, head_dim: int | None = None, local: bool = False) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        exponent = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        rates = (1.0 / np.float32(self.rope_theta) ** exponent).astype(np.float32)
        if self.rope_scaling == "default":
            return rates
        scaled = rates / np.float32(self.rope_factor)
        if self.rope_scaling == "linear":
            return scaled
        turns = self.rope_context * rates / (2 * math.pi)  # of a pair within the old context
        low, high = self.rope_low_factor, self.rope_high_factor
        share = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
        return (1 - share) * scaled + share * rates


@dataclasses.dataclass(frozen=True)
class Llama(PromptModel):
    """A LLaMA as a `Model`.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: LlamaConfig
    config_class: ClassVar[type[LlamaConfig]] = LlamaConfig
