"""Functions that select what a drafter's model reads of the inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from specdec.models.model import Target
from specdec.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class NoSource:
    """Replaces every input by a single stop id, so that the drafter knows only the text.

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

    def __call__(self, inputs: Array) -> Array:
        """Maps inputs [B, S] int32 to [B, 1]; a row of padding remains padding."""
        if self.eos_id is None or self.pad_id is None:
            raise ValueError(f"{self} has no ids; call read_by(model) first, or give both")
        real = jnp.any(inputs != self.pad_id, axis=1, keepdims=True)
        return jnp.where(real, self.eos_id, self.pad_id).astype(jnp.int32)


def read_by(model: Target, view: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
    """Returns a view as a function of the inputs alone.

    Args:
      model: the model that reads what the view selects.
      view: a function of the inputs, or a `NoSource`.
    """
    return view.read_by(model) if isinstance(view, NoSource) else view
