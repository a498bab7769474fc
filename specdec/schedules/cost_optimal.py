"""Draft lengths of least expected cost per token, from acceptance so far or from estimates."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import struct

from specdec.common.values import InsideUnit, NonNegativeFloat, PositiveFloat
from specdec.schedules.schedule import Buckets, Priced, UpToLongest, time_of, tokens_of
from specdec.types import Array, Draft, Verdict


class Seen(struct.PyTreeNode):
    """Counts of a text's tested and kept draft tokens, by position in the draft."""

    tested: Array  # [B, K] float32, number of drafts whose tokens before this one were all kept
    kept: Array  # [B, K] float32, number of those drafts whose token here was kept too


@dataclasses.dataclass(frozen=True)
class CostOptimal(Priced):
    """Drafts the number of tokens with the least expected time per token.

    Let a_i be the probability that token i of a draft is kept if those before it were. A draft of n
    tokens is expected to yield, and to take in units of a target step,

      1 + a_1 + a_1 a_2 + ... + a_1 .. a_n   tokens,   c n + v(n)   units,

    which is Leviathan et al. 2022, theorem 3.8, for any a_i and v. a_i is estimated from the text
    so far. Few drafts get far, so the estimate over all positions is the prior of each position:

      a   = (strength prior + kept)   / (strength + tested)
      a_i = (strength a     + kept_i) / (strength + tested_i)

    Every text starts without data, and rows are independent of each other. The costs are constants,
    so that a text does not depend on the machine's load.

    Args:
      c: the time of a draft step, divided by that of a target step of one token.
      v: the time of the target call of each bucket, in the same unit: v[i] is for buckets[i] + 1
        tokens.
      buckets: static ascending draft lengths, see `Schedule`. Any length up to the last may be
        chosen. With a bucket of 0 a text may stop drafting; its estimates then stay unchanged.
      prior: the probability that a token is kept, before there is any data.
      strength: the weight of a prior, in tested tokens.

    Example:

    >>> import numpy as np
    >>> schedule = CostOptimal(c=0.1, v=(1.0, 1.1), buckets=(0, 4), prior=0.9)
    >>> np.asarray(schedule.want(schedule.init(batch=1)))  # the first draft of a text
    array([4], dtype=int32)
    """

    c: NonNegativeFloat
    v: tuple[float, ...]
    buckets: Buckets
    prior: InsideUnit = 0.7
    strength: PositiveFloat = 4.0

    def init(self, batch: int) -> Seen:
        nothing = jnp.zeros([batch, self.buckets[-1]], jnp.float32)
        return Seen(nothing, nothing)

    def want(self, state: Seen) -> Array:
        of_all = jnp.sum(state.tested, axis=1), jnp.sum(state.kept, axis=1)
        anywhere = self._rate(*of_all, self.prior)[:, None]
        rates = self._rate(state.tested, state.kept, anywhere)
        time = jnp.array(self._time(), jnp.float32)[None] / tokens_of(rates)
        return jnp.argmin(time, axis=1).astype(jnp.int32)

    def update(self, state: Seen, draft: Draft, verdict: Verdict) -> Seen:
        index = jnp.arange(self.buckets[-1])[None]
        length, accepted = draft.length[:, None], verdict.num_accepted[:, None]
        tested = state.tested + ((index < length) & (index <= accepted))
        return Seen(tested, state.kept + (index < accepted))

    def _rate(self, tested: Array, accepted: Array, prior: Array | float) -> Array:
        """Returns the share of tested tokens that were kept, starting from a prior."""
        return (self.strength * prior + accepted) / (self.strength + tested)

    def _time(self) -> list[float]:
        """Returns the time of an iteration with 0 .. K draft tokens, [1+K]; inf if excluded."""
        time = self.times()
        return time if self.buckets[0] == 0 else [float("inf"), *time[1:]]


@dataclasses.dataclass(frozen=True)
class ForeseenCost(Priced, UpToLongest):
    """Cuts a drafted block to the length with the lowest expected cost per token.

    It is `CostOptimal` with acceptance probabilities of this draft, which a drafter with a
    confidence head estimates before it draws (`Masked`, after DSpark, 2026). The estimates may
    depend on the text but not on drawn tokens, so the output stays exact. Let a_i be the estimate
    for token i if those before it are kept. Then n tokens are expected to yield, and to take in
    units of a target step,

      1 + a_1 + a_1 a_2 + ... + a_1 .. a_n   tokens,   c + v(n)   units:

    the time of the block is spent in any case. Other drafters draft the longest length.

    Args:
      c: the time of a block, divided by that of a target step of one token.
      v: the time of the target call of each bucket, in the same unit: v[i] is for buckets[i] + 1
        tokens.
      buckets: static ascending draft lengths, see `Schedule`. With a bucket of 0 a block may be
        discarded.
    """

    c: NonNegativeFloat
    v: tuple[float, ...]

    @property
    def cuts(self) -> bool:
        return True

    def cut(self, rates: Array) -> Array:
        time = self.c + jnp.array(time_of(0.0, self.v, self.buckets), jnp.float32)
        return jnp.argmin(time[None] / tokens_of(rates), axis=1).astype(jnp.int32)
