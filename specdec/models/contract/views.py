"""Functions that map the target's inputs to those that a drafter's model reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from specdec.models.contract.inputs import check_last, tokens_of
from specdec.models.contract.model import Target
from specdec.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class NoSource:
    """Replaces every input by a single stop id, so that a drafter's model reads only the output.

    The language-only draft of Gagrani et al. 2024 (2404.08856, section 3) ignores images in the
    same way. Such a drafter needs no large encoder, and no prefill of long inputs.

    Args:
      eos_id: the stop id; None for the first one of the model that reads it.
      pad_id: the padding id; None for that model's.
    """

    eos_id: int | None = None
    pad_id: int | None = None

    def read_by(self, model: Target) -> NoSource:
        """Returns this view with the ids of a model.

        Raises:
          ValueError: the model is decoder-only, or does not name its stop ids.
        """
        name = type(model).__name__
        if model.decoder_only:
            raise ValueError(
                f"NoSource hides the inputs, which are the beginning of a text for {name}, a "
                "decoder-only model; leave NoSource (DRAFT_READS) out"
            )
        eos_id, pad_id = self.eos_id, model.pad_id if self.pad_id is None else self.pad_id
        if eos_id is None:
            if not model.stop_ids:
                raise ValueError(f"{name} names no stop id, which NoSource reads; give eos_id")
            eos_id = model.stop_ids[0]
        return NoSource(eos_id, pad_id)

    def __call__(self, inputs: PyTree) -> Array:
        """Maps inputs to [B, 1] int32; a row of padding remains padding."""
        if self.eos_id is None or self.pad_id is None:
            raise ValueError(f"{self} has no ids; call read_by(model) first, or give both")
        tokens = tokens_of(inputs)  # or sound, of which a row of zeros is padding
        padding = self.pad_id if tokens.dtype == jnp.int32 else 0
        real = jnp.any(tokens != padding, axis=tuple(range(1, tokens.ndim)))
        return jnp.where(real, self.eos_id, self.pad_id).astype(jnp.int32)[:, None]


@dataclasses.dataclass(frozen=True)
class WithoutPictures:
    """Removes the pictures from prompts, so that a language model drafts without them.

    The remaining tokens move together, and positions are counted without the pictures (Gagrani et
    al. 2024, 2404.08856, section 3). The target still reads the pictures.

    Args:
      image_id: the id that stands for each patch of a picture.
      pad_id: the padding id; None for that of the model that reads the text.
    """

    image_id: int
    pad_id: int | None = None

    def read_by(self, model: Target) -> WithoutPictures:
        """Returns this view with the padding id of a model."""
        pad_id = model.pad_id if self.pad_id is None else self.pad_id
        return WithoutPictures(self.image_id, pad_id)

    def __call__(self, inputs: PyTree) -> Array:
        """Maps inputs with tokens [B, S] int32 to tokens [B, S] without `image_id`.

        Raises:
          ValueError: there is no padding id, or a prompt ends in a picture.
        """
        if self.pad_id is None:
            raise ValueError(f"{self} has no padding id; call read_by(model) first, or give it")
        tokens = tokens_of(inputs)
        check_last(tokens, self.image_id, self.pad_id)
        is_patch = tokens == self.image_id
        order = jnp.argsort(is_patch, axis=1, stable=True)
        behind = jnp.take_along_axis(is_patch, order, axis=1)
        return jnp.where(behind, self.pad_id, jnp.take_along_axis(tokens, order, axis=1))


def read_by(model: Target, view: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    """Returns a view as a function of the inputs, with the ids of the model that reads them."""
    return view.read_by(model) if isinstance(view, NoSource | WithoutPictures) else view
