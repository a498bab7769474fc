"""The length that costs least per token: as far as this text has shown, or as a block foresees."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import struct

from specdec.common.values import Checked, InsideUnit, NonNegativeFloat, PositiveFloat
from specdec.schedules.buckets import (
    Buckets,
    UpToLongest,
    check_costs,
    shortened,
    time_of,
    tokens_of,
)
from specdec.schedules.schedule import Schedule
from specdec.types import Array, Draft, Verdict


class Seen(struct.PyTreeNode):
    """What became of a text's drafts, by position in the draft."""

    tested: Array  # [B, K] float32, drafts of which all tokens before this one were kept
    kept: Array  # [B, K] float32, those of them of which this one was kept too


@dataclasses.dataclass(frozen=True)
class CostOptimal(Checked, Schedule):
    """Drafts as many tokens as have the least expected time per token.

    With a_i the probability that token i of a draft is kept, given that those before it were, a
    draft of n tokens is expected to yield, and to take in units of a target step,

        1 + a_1 + a_1 a_2 + ... + a_1 .. a_n   tokens,   c n + v(n)   units,

    which is Leviathan et al. 2022, theorem 3.8, for any a_i and v. a_i is learned from the text so
    far, and what is known of all positions is the prior of each, as few drafts get far:

        a   = (strength prior + kept)   / (strength + tested)
        a_i = (strength a     + kept_i) / (strength + tested_i)

    Every text begins anew, and no row knows of another. The costs are constants, so that a text is
    the same on a slow day.

    c: time of a draft step, over that of a target step of one token.
    v: time of the target call of each bucket, likewise: v[i] is of buckets[i] + 1 tokens.
    buckets: static ascending draft lengths, see `Schedule`; any length up to the last may be
      chosen. With a bucket of 0 a text may do without drafts, and then learns nothing more.
    prior: probability that a token is kept, before anything is known.
    strength: tokens that a prior counts for.
    """

    c: NonNegativeFloat
    v: tuple[float, ...]
    buckets: Buckets
    prior: InsideUnit = 0.7
    strength: PositiveFloat = 4.0

    def __post_init__(self):
        super().__post_init__()
        check_costs(self, self.buckets)

    def up_to(self, longest: int) -> CostOptimal:
        buckets = shortened(self.buckets, longest)
        return dataclasses.replace(self, buckets=buckets, v=self.v[: len(buckets)])

    def init(self, batch: int) -> Seen:
        nothing = jnp.zeros([batch, self.buckets[-1]], jnp.float32)
        return Seen(nothing, nothing)

    def want(self, state: Seen) -> Array:
        of_all = jnp.sum(state.tested, axis=1), jnp.sum(state.kept, axis=1)
        anywhere = self._rate(*of_all, self.prior)[:, None]
        kept = self._rate(state.tested, state.kept, anywhere)
        time = jnp.array(self._time(), jnp.float32)[None] / tokens_of(kept)
        return jnp.argmin(time, axis=1).astype(jnp.int32)

    def update(self, state: Seen, draft: Draft, verdict: Verdict) -> Seen:
        index = jnp.arange(self.buckets[-1])[None]
        length, accepted = draft.length[:, None], verdict.num_accepted[:, None]
        tested = state.tested + ((index < length) & (index <= accepted))
        return Seen(tested, state.kept + (index < accepted))

    def _rate(self, tested: Array, kept: Array, prior: Array | float) -> Array:
        """What is kept of what is tested, beginning with a prior."""
        return (self.strength * prior + kept) / (self.strength + tested)

    def _time(self) -> list[float]:
        """[1+K] of an iteration with 0 .. K draft tokens, endless where that may not be chosen."""
        time = time_of(self.c, self.v, self.buckets)
        return time if self.buckets[0] == 0 else [float("inf"), *time[1:]]


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
