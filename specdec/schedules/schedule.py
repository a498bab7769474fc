"""The base class of schedules: a new schedule is one file here that inherits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import jax.numpy as jnp

from specdec.types import Array, Draft, Params, PyTree, Table, Verdict

if TYPE_CHECKING:
    from specdec.schedules.stopping import Signals

Self = TypeVar("Self", bound="Schedule")


class Schedule:
    """Chooses draft lengths: a frozen dataclass, which has at least `buckets`. By default the
    longest draft is wanted every time, and nothing ends one early.

    A schedule may stop *after* a token it has seen. It must never have one discarded: dropping a
    token because of its value biases the output under sampling.

    Drafting ends as well once each row has what it wants, or has drafted a stop id. Where lengths
    do not vary it is a loop of K steps.

    buckets: static ascending draft lengths, the last one is K. The target call has the width of the
      smallest that holds what was drafted; with a bucket of 0 no drafter is asked if nothing is
      wanted.
    """

    buckets: tuple[int, ...]

    def init(self, batch: int) -> PyTree:
        """Returns the state of B texts before their first draft."""
        return jnp.full([batch], self.buckets[-1], jnp.int32)

    def want(self, state: PyTree) -> Array:
        """Returns how many tokens to draft next, [B] int32."""
        return state

    def update(self, state: PyTree, draft: Draft, verdict: Verdict) -> PyTree:
        """Learns from the outcome; fields have a leading B, and the draft its bucket's length."""
        return state

    @property
    def stops_within(self) -> bool:
        """Whether `stop` is asked after each draft token."""
        return False

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        """Returns (carry, [B] bool, which rows stop) after draft token `index` [], which was drawn,
        [B] int32, from probs [B, V]. The carry starts as the schedule's state."""
        raise NotImplementedError

    @property
    def cuts(self) -> bool:
        """Whether `cut` is asked before a block is drawn."""
        return False

    def cut(self, kept: Array) -> Array:
        """Returns how many tokens of a block are enough, [B] int32, given how probable each is to
        be kept, those before it kept, [B, K] float32. It is not told what depends on a token."""
        raise NotImplementedError

    @property
    def replayable(self) -> bool:
        """Whether `stops` says, along a recorded text, where `stop` and `cut` would end drafts."""
        return not (self.stops_within or self.cuts)

    def stops(self, params: Params, signals: Signals) -> Array:
        """Returns whether to stop after tokens with these signals, [...] bool."""
        raise NotImplementedError

    @property
    def lengths_vary(self) -> bool:
        """Whether some drafts take more steps than others."""
        return len(self.buckets) > 1 or self.stops_within or self.cuts

    def up_to(self: Self, longest: int) -> Self | None:
        """Returns this schedule, or that of shorter drafts where no longer ones can be used; None
        if it has no shorter ones."""
        return None

    def tables(self) -> dict[str, Table]:
        """Returns the tables that it has parameters in, by role."""
        return {}
