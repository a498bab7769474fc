"""LLaVA as a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from specdec.common.values import PositiveInt, UsageError
from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.prompts import PromptModel
from specdec.models.contract.cache import PromptCache
from specdec.models.contract.inputs import check_last, check_tokens, tokens_of
from specdec.models.llava.clip import CHANNELS
from specdec.models.llava.llava_network import LlavaConfig, LlavaNetwork
from specdec.types import Array, Prompt, PyTree


@dataclasses.dataclass(frozen=True)
class Llava(PromptModel):
    """A LLaVA as a `Model`.

    Its inputs are a dict with "tokens" [B, S] int32 and "pixels" [B, P, 3, H, W] float32. A prompt
    has `image_id` once for each patch of its pictures, of which there are at most P. `inputs_of`
    makes such inputs. Prompts without pictures may also be tokens alone.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
      pictures: P, the most pictures of a prompt that `inputs_shape` has room for.
    """

    config: LlavaConfig
    pictures: PositiveInt = 1
    config_class: ClassVar[type[LlavaConfig]] = LlavaConfig
    network_class: ClassVar[type[StackNetwork]] = LlavaNetwork

    @property
    def cache_heads(self) -> int:
        """The greatest common divisor of the numbers of heads of keys and of the vision tower."""
        return math.gcd(self.config.num_kv_heads, self.config.vision.num_heads)

    def example(self) -> tuple[Array, PromptCache, Array]:  # type: ignore[override]
        """Returns a token, an empty cache for it, and a picture."""
        return *super().example(), jnp.zeros((1, 1, *self._picture))

    def active(self, inputs: PyTree) -> Array:
        """Returns [B] bool, the rows that have a token other than padding."""
        return super().active(tokens_of(inputs))

    def start(self, inputs: PyTree) -> Array:
        """Returns [B] int32, the last token of each prompt; 0 for a row of padding."""
        return super().start(tokens_of(inputs))

    def prompt(self, inputs: PyTree) -> Prompt:
        """Returns the tokens of the prompts, with `image_id` for each patch."""
        return super().prompt(tokens_of(inputs))

    def inputs_shape(self, rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes and dtypes of "tokens" and "pixels"."""
        pixels = (rows, self.pictures, *self._picture)
        return {
            "tokens": jax.ShapeDtypeStruct((rows, length), jnp.int32),
            "pixels": jax.ShapeDtypeStruct(pixels, jnp.float32),
        }

    def with_room(self, files: int) -> Llava:
        """Returns this model with room for `files` pictures in a prompt, at least for one."""
        return dataclasses.replace(self, pictures=max(files, 1))

    def check_inputs(self, inputs: PyTree) -> None:
        """Raises UsageError if the number of a prompt's patches does not fit its pictures."""
        tokens = np.asarray(jax.device_get(tokens_of(inputs)))
        image_id, patches = self.config.image_id, self.config.vision.num_patches
        most = inputs["pixels"].shape[1] if isinstance(inputs, Mapping) else 0
        counts = np.sum(tokens == image_id, axis=1)
        for row in np.flatnonzero((counts % patches != 0) | (counts > most * patches)):
            raise UsageError(
                f"prompt {row + 1} has the id {image_id} {counts[row]} times; give it {patches} "
                f"times for each of at most {most} pictures"
            )
        check_last(tokens, image_id, self.pad_id)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> PromptCache:
        """Returns the cache of prompts with pictures, without the prompts' last tokens."""
        if not isinstance(inputs, Mapping):
            return super().prefill(params, inputs, capacity)
        tokens, pixels = inputs["tokens"], inputs["pixels"]
        check_tokens(tokens)
        shape = (*pixels.shape[:1], *pixels.shape[2:])
        if pixels.dtype != jnp.float32 or shape != (len(tokens), *self._picture):
            sizes = ", ".join(map(str, self._picture))
            raise ValueError(
                f"pixels are {pixels.dtype}{list(pixels.shape)}; give float32 [{len(tokens)}, "
                f"pictures, {sizes}]"
            )

        model = self.in_layout(in_order=False)  # a prompt has no slots between those it sees

        def feed(x: Array, cache: PromptCache) -> PromptCache:
            return model.apply(params, x, cache, method="feed")

        x = self.apply(params, tokens, pixels, method="embed_prompts")
        return self._filled(x, self._base(tokens), capacity, feed)

    def inputs_of(
        self, prompts: Sequence[Sequence[int]], pictures: Sequence[Sequence[np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Returns a batch of prompts with pictures.

        Args:
          prompts: the ids of each prompt, with `image_id` once for each of its pictures.
          pictures: the pixels [3, H, W] of each prompt's pictures, in their order.

        Raises:
          ValueError: the number of a prompt's pictures is not that of its `image_id`, or a prompt
            ends in a picture.
        """
        patches, rows = self.config.vision.num_patches, []
        for row, (prompt, images) in enumerate(zip(prompts, pictures, strict=True), start=1):
            ids = np.asarray(prompt, np.int32)
            is_picture = ids == self.config.image_id
            if is_picture.sum() != len(images):
                raise ValueError(
                    f"prompt {row} has the id {self.config.image_id} {is_picture.sum()} times and "
                    f"{len(images)} pictures; give it once for each picture"
                )
            rows.append(np.repeat(ids, np.where(is_picture, patches, 1)))
        tokens = np.full([len(rows), max(map(len, rows))], self.pad_id, np.int32)
        most = max(map(len, pictures))
        pixels = np.zeros([len(rows), most, *self._picture], np.float32)
        for row, (ids, images) in enumerate(zip(rows, pictures, strict=True)):
            tokens[row, : len(ids)] = ids
            for index, picture in enumerate(images):
                pixels[row, index] = picture
        check_last(tokens, self.config.image_id, self.pad_id)
        return {"tokens": tokens, "pixels": pixels}

    @property
    def _picture(self) -> tuple[int, int, int]:
        """The shape of a picture's pixels."""
        size = self.config.vision.image_size
        return CHANNELS, size, size
