"""Functions that select what a drafter's model reads of the inputs."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class NoSource:
    """Replaces every input by a single stop id, so that the drafter knows only the text.

    The language-only draft of Gagrani et al. 2024 (2404.08856, section 3) ignores images in the
    same way. Such a drafter needs no large encoder, and no prefill of long inputs.

    Args:
      eos_id: the stop id of the model's vocabulary.
      pad_id: its padding id.
    """

    eos_id: int = 1
    pad_id: int = 0

    def __call__(self, inputs: Array) -> Array:
        """Maps inputs [B, S] int32 to [B, 1]; a row of padding remains padding."""
        real = jnp.any(inputs != self.pad_id, axis=1, keepdims=True)
        return jnp.where(real, self.eos_id, self.pad_id).astype(jnp.int32)
