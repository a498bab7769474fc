"""The architecture of T5Gemma, version 2, in plain values."""

from __future__ import annotations

import dataclasses

import numpy as np

from specdec.common.values import NonNegativeInt, PositiveFloat, PositiveInt
from specdec.models.t5gemma.t5gemma_config import T5GemmaConfig, rates


@dataclasses.dataclass(frozen=True)
class T5Gemma2Config(T5GemmaConfig):
    """The architecture of the text part of a T5Gemma 2 (Zhang et al. 2025, 2512.14856).

    Both stacks are Gemma 3's, of one width. The other fields are those of version 1, without a cap
    of attention logits.

    Args:
      window: the tokens that local layers see, up to a token and with it. The encoder sees this
        many around a token and one more.
      rope_theta: the base of the wavelengths of rotary positions in global layers.
      local_rope_theta: the same in local layers.
      rope_factor: the number that positions are divided by in global layers.
      pattern: every layer with a number that it divides, counted from 1, is global.
      end_of_image_id: the id with an embedding of its own.
    """

    window: PositiveInt = 512
    attention_cap: PositiveFloat | None = None
    logits_cap: PositiveFloat | None = None
    rope_theta: PositiveFloat = 1_000_000.0
    local_rope_theta: PositiveFloat = 10_000.0
    rope_factor: PositiveFloat = 1.0
    pattern: PositiveInt = 6
    end_of_image_id: NonNegativeInt = dataclasses.field(default=256_000, repr=False)

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
                f"{self.emb_dim}, which one table serves; give one width"
            )

    @property
    def encoder_window(self) -> tuple[int, int]:
        """The number of tokens before and behind a token that local layers of the encoder see."""
        return (self.window + 1) // 2 - 1, self.window // 2

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, sees a window."""
        return (layer + 1) % self.pattern != 0

    def rotary_rates(self, head_dim: int, local: bool) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        if local:
            return rates(self.local_rope_theta, head_dim)
        return rates(self.rope_theta, head_dim) / np.float32(self.rope_factor)
