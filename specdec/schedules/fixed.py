"""The same draft length every time."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array, Draft, Verdict


@dataclasses.dataclass(frozen=True)
class Fixed:
    """gamma tokens, every time (Leviathan et al. 2022)."""

    gamma: int

    def __post_init__(self):
        if not isinstance(self.gamma, int) or self.gamma < 1:
            raise ValueError(f"Fixed.gamma is {self.gamma!r}; give a positive integer")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def init(self, batch: int) -> Array:
        return jnp.full([batch], self.gamma, jnp.int32)

    def want(self, state: Array) -> Array:
        return state

    def update(self, state: Array, draft: Draft, verdict: Verdict) -> Array:
        return state
