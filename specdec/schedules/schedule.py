"""The base class of schedules: a new schedule is one file here that inherits it."""

from __future__ import annotations

from typing import TypeVar

import jax.numpy as jnp

from specdec.schedules.signals import Signals
from specdec.types import Array, Draft, Params, PyTree, Table, Verdict

Self = TypeVar("Self", bound="Schedule")


class Schedule:
    """Chooses draft lengths; a frozen dataclass that has at least `buckets`.

    By default the longest draft is always wanted, and no rule ends it early. A schedule may stop
    *after* a token it has seen. It must never discard one: dropping a token because of its value
    biases the output under sampling. Drafting also ends once each row has what it wants, or has
    drafted a stop id. If lengths do not vary, drafting is a loop of K steps.

    Attributes:
      buckets: static ascending draft lengths; the last one is K. The target call has the width of
        the smallest bucket that holds the draft. With a bucket of 0, no drafter runs if no tokens
        are wanted.
    """

    buckets: tuple[int, ...]

    def init(self, batch: int) -> PyTree:
        """Returns the state of B texts before their first draft.

        Args:
          batch: B.
        """
        return jnp.full([batch], self.buckets[-1], jnp.int32)

    def want(self, state: PyTree) -> Array:
        """Returns [B] int32, how many tokens to draft next."""
        return state

    def update(self, state: PyTree, draft: Draft, verdict: Verdict) -> PyTree:
        """Returns the state after a verdict.

        Args:
          state: the state before.
          draft: the draft, with a leading B and the length of its bucket.
          verdict: the verdict about it, with a leading B.
        """
        return state

    @property
    def stops_within(self) -> bool:
        """Whether `stop` is asked after each draft token."""
        return False

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        """Returns the next carry, and [B] bool, which rows stop after this draft token.

        Args:
          params: the parameters of all roles.
          carry: the schedule's state at the first token, then what the last call returned.
          index: [] int32, the index of the token in the draft.
          probs: [B, V] the distributions that the tokens were drawn from.
          tokens: [B] int32, the tokens.
        """
        raise NotImplementedError

    @property
    def cuts(self) -> bool:
        """Whether `cut` is asked before a block is drawn."""
        return False

    def cut(self, rates: Array) -> Array:
        """Returns [B] int32, how many tokens of a block are enough.

        The result must not depend on drawn tokens.

        Args:
          rates: [B, K] float32, the probability that each token is kept if those before it are.
        """
        raise NotImplementedError

    @property
    def replayable(self) -> bool:
        """Whether `stops` can tell from recorded texts where `stop` and `cut` would end drafts."""
        return not (self.stops_within or self.cuts)

    def stops(self, params: Params, signals: Signals) -> Array:
        """Returns [...] bool, whether to stop after tokens with these signals."""
        raise NotImplementedError

    @property
    def lengths_vary(self) -> bool:
        """Whether the number of drafting steps varies."""
        return len(self.buckets) > 1 or self.stops_within or self.cuts

    def up_to(self: Self, longest: int) -> Self | None:
        """Returns this schedule for drafts of at most `longest` tokens; None if there is none."""
        return None

    def tables(self) -> dict[str, Table]:
        """Returns, by role, the tables that hold the schedule's parameters."""
        return {}
