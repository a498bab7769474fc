"""LLaVA's architecture, in plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from specdec.common.values import NonNegativeInt, check_is
from specdec.models.llama.llama_model import LlamaConfig
from specdec.models.llava.clip import ClipConfig


@dataclasses.dataclass(frozen=True)
class LlavaConfig(LlamaConfig):
    """The architecture of a LLaVA 1.5 (Liu et al. 2023, 2310.03744).

    The other fields are those of its language model, a LLaMA.

    Args:
      vision: the tower that reads pictures. A projector of two layers maps its features to the
        language model's width.
      image_id: the id in the place of each patch of a picture.
    """

    vision: ClipConfig = dataclasses.field(kw_only=True)
    image_id: NonNegativeInt = dataclasses.field(default=32_000, kw_only=True)

    def __post_init__(self):
        if isinstance(self.vision, Mapping):  # from JSON
            object.__setattr__(self, "vision", ClipConfig(**self.vision))
        check_is("LlavaConfig.vision", self.vision, ClipConfig, "a ClipConfig")
        super().__post_init__()
        if self.image_id >= self.vocab_size or self.image_id in (self.pad_id, *self.stop_ids):
            raise ValueError(
                f"LlavaConfig.image_id is {self.image_id}; give an id below vocab_size "
                f"{self.vocab_size} other than pad_id {self.pad_id} and stop_ids {self.stop_ids}"
            )
