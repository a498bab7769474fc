"""LLaVA's network: LLaMA's, with features of pictures instead of some of a prompt's tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import jax.numpy as jnp

from specdec.common.values import NonNegativeInt, check_is
from specdec.models.bases.prompts import DecoderOnly
from specdec.models.contract.cache import PromptCache
from specdec.models.layers.layers import MLP
from specdec.models.llama.llama_model import LlamaConfig
from specdec.models.llava.clip import ClipConfig, ClipTower
from specdec.types import Array, ModelOutput


@dataclasses.dataclass(frozen=True)
class LlavaConfig(LlamaConfig):
    """The architecture of a LLaVA 1.5 (Liu et al. 2023, 2310.03744).

    The other fields are those of its language model, a LLaMA.

    Args:
      vision: the tower that reads pictures. A projector of two layers maps its features to the
        language model's width.
      image_id: the id that stands for each patch of a picture.
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


class LlavaNetwork(DecoderOnly):
    """A `DecoderOnly` whose prompts hold pictures; outputs are text."""

    config: LlavaConfig

    def setup(self):
        super().setup()
        c = self.config
        self.vision = ClipTower(c.vision, c.dtype)
        self.projector = MLP(c.emb_dim, c.emb_dim, ("exact_gelu",), c.dtype, bias=True)

    def embed_prompts(self, tokens: Array, pixels: Array) -> Array:
        """Returns the embedded prompts [B, S, D].

        The k-th token `image_id` of a row becomes the k-th patch of its pictures.
        """
        x = self.embed(tokens)
        rows, pictures, *picture = pixels.shape
        if not pictures:
            return x
        features = self.projector(self.vision(pixels.reshape(rows * pictures, *picture)))
        features = features.reshape(rows, -1, x.shape[-1])
        is_patch = tokens == self.config.image_id
        patch = jnp.cumsum(is_patch, axis=1) - 1
        features = jnp.take_along_axis(features, patch[:, :, None], axis=1)
        return jnp.where(is_patch[:, :, None], features, x)

    def feed(self, x: Array, cache: PromptCache) -> PromptCache:
        """Returns the cache after a block [B, T, D] of embedded prompts."""
        return cast(PromptCache, self.decoder(x, cache)[1])

    def __call__(self, tokens: Array, cache: PromptCache, pixels: Array) -> ModelOutput:
        return self.decode(tokens, cache, resume=self.embed_prompts(tokens, pixels))[0]
