"""Inputs that are token ids, as most families read them."""

from __future__ import annotations

import jax.numpy as jnp

from specdec.types import Array


def check_tokens(inputs: Array) -> None:
    """Raises ValueError, at tracing, for inputs that are not [B, S] int32."""
    if getattr(inputs, "ndim", None) == 2 and inputs.dtype == jnp.int32:
        return
    shape = list(getattr(inputs, "shape", ()))
    raise ValueError(
        f"inputs are {getattr(inputs, 'dtype', type(inputs).__name__)}{shape}; give int32 "
        "[rows, input length]"
    )
