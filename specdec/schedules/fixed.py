"""The same draft length every time."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array, Draft, Verdict
from specdec.values import is_integer


@dataclasses.dataclass(frozen=True)
class Fixed:
    """gamma tokens, every time (Leviathan et al. 2022)."""

    gamma: int

    def __post_init__(self):
        if not is_integer(self.gamma, 1):
            raise ValueError(f"Fixed.gamma is {self.gamma!r}; give a positive integer")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def up_to(self, longest: int) -> Fixed:
        """This schedule, or that of shorter drafts where no longer ones can be used."""
        return Fixed(min(self.gamma, longest))

    def init(self, batch: int) -> Array:
        return jnp.full([batch], self.gamma, jnp.int32)

    def want(self, state: Array) -> Array:
        return state

    def update(self, state: Array, draft: Draft, verdict: Verdict) -> Array:
        return state
