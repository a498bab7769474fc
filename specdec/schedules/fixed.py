"""The same draft length every time."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array, Draft, Verdict
from specdec.values import is_integer


@dataclasses.dataclass(frozen=True)
class Fixed:
    """gamma tokens, every time (Leviathan et al. 2022, section 2.3).

    gamma: tokens of a draft.
    stop_at_end: whether drafting ends once each row has drafted a stop id. It then is a loop of
      unknown length, which is not worth its price where a draft step costs next to nothing.
    """

    gamma: int
    stop_at_end: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self):
        if not is_integer(self.gamma, 1):
            raise ValueError(f"Fixed.gamma is {self.gamma!r}; give a positive integer")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def up_to(self, longest: int) -> Fixed:
        """This schedule, or that of shorter drafts where no longer ones can be used."""
        return dataclasses.replace(self, gamma=min(self.gamma, longest))

    def init(self, batch: int) -> Array:
        return jnp.full([batch], self.gamma, jnp.int32)

    def want(self, state: Array) -> Array:
        return state

    def update(self, state: Array, draft: Draft, verdict: Verdict) -> Array:
        return state
