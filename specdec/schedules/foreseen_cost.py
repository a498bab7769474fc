"""The length that costs least per token, as far as a block foresees what of it is kept."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import NonNegativeFloat
from specdec.schedules.buckets import UpToLongest, check_costs, shortened, time_of, tokens_of
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class ForeseenCost(UpToLongest):
    """Has a block drafted, and as many of its tokens verified as have the least expected time per
    token.

    It is `CostOptimal` with probabilities of this draft, which a drafter with a confidence head
    (`Masked`, after DSpark, 2026) tells before it draws. They may depend on the text and on nothing
    that was drawn behind it, so the output stays exact. With a_i that of token i, those before it
    kept, n tokens are expected to yield, and to take in units of a target step,

        1 + a_1 + a_1 a_2 + ... + a_1 .. a_n   tokens,   c + v(n)   units:

    the block is drafted whatever becomes of it. Other drafters draft the longest.

    c: time of a block, over that of a target step of one token.
    v: time of the target call of each bucket, likewise: v[i] is of buckets[i] + 1 tokens.
    buckets: static ascending draft lengths, see `Schedule`. With a bucket of 0 a block may be
      thrown away.
    """

    c: NonNegativeFloat
    v: tuple[float, ...]

    def __post_init__(self):
        super().__post_init__()
        check_costs(self, self.buckets)

    def up_to(self, longest: int) -> ForeseenCost:
        buckets = shortened(self.buckets, longest)
        return dataclasses.replace(self, buckets=buckets, v=self.v[: len(buckets)])

    @property
    def cuts(self) -> bool:
        return True

    def cut(self, kept: Array) -> Array:
        time = self.c + jnp.array(time_of(0.0, self.v, self.buckets), jnp.float32)
        return jnp.argmin(time[None] / tokens_of(kept), axis=1).astype(jnp.int32)
