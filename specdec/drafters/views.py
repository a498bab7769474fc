"""What a drafter's model may read of the inputs, where that is not all of them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class NoSource:
    """Nothing: an input that is but a stop id, whatever the target reads.

    The drafter then knows the text alone, as the language-only draft of Gagrani et al. 2024
    (2404.08856, section 3) knows no image: it needs no encoder of the target's size, and no prefill
    of long inputs.

    eos_id, pad_id: of the model's vocabulary.
    """

    eos_id: int = 1
    pad_id: int = 0

    def __call__(self, inputs: Array) -> Array:
        """[B, S] int32 -> [B, 1]; a row of padding stays one."""
        real = jnp.any(inputs != self.pad_id, axis=1, keepdims=True)
        return jnp.where(real, self.eos_id, self.pad_id).astype(jnp.int32)
