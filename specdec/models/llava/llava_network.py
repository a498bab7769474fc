"""LLaVA's network: LLaMA's, with features of pictures in the place of some of a prompt's tokens."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp

from specdec.models.bases.decoder_only import DecoderOnly
from specdec.models.contract.cache import PromptCache
from specdec.models.layers.layers import MLP
from specdec.models.llava.clip import ClipTower
from specdec.models.llava.llava_config import LlavaConfig
from specdec.types import Array, ModelOutput


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
        """Returns the cache after a part [B, T, D] of embedded prompts."""
        return cast(PromptCache, self.decoder(x, cache)[1])

    def __call__(self, tokens: Array, cache: PromptCache, pixels: Array) -> ModelOutput:
        return self.decode(tokens, cache, resume=self.embed_prompts(tokens, pixels))[0]
