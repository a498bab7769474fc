"""The base class of schedules, and what several of them share: signals, buckets and costs.

A new schedule is one file here that inherits `Schedule`.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Annotated, Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.common.values import Checked, NonNegativeFloat, Rule, is_integer, is_number
from specdec.types import Array, Draft, Params, PyTree, Table, Values, Verdict

TOP = 10  # of the greatest probabilities


class Signals(NamedTuple):
    """The draft token's probability, and facts about the distribution it was drawn from.

    For a greedy draft, the distribution is the softmax.
    """

    confidence: Values  # [...] the token's probability
    entropy: Values  # [...] of the distribution, in nats
    top: Values  # [..., TOP] its greatest probabilities, descending
    index: Values | int  # [...] the token's position in the draft, from 0


def signals(probs: Array, tokens: Array, index: Array | int) -> Signals:
    """Returns the signals of tokens [...] int32 that were drawn from probs [..., V]."""
    confidence = jnp.take_along_axis(probs, tokens[..., None], axis=-1)[..., 0]
    top = jax.lax.top_k(probs, min(TOP, probs.shape[-1]))[0]
    missing = [(0, 0)] * (top.ndim - 1) + [(0, TOP - top.shape[-1])]
    entropy = jnp.sum(entr(probs), axis=-1)
    return Signals(confidence, entropy, jnp.pad(top, missing), index)


class Schedule:
    """Chooses draft lengths; a frozen dataclass that has at least `buckets`.

    By default the longest draft is always wanted, and no rule ends it early. A schedule may stop
    *after* a token it has seen. It must never discard one: dropping a token because of its value
    biases the output under sampling. Drafting also ends once each row has the length it wants, or
    has drafted a stop id. If lengths do not vary, drafting is a loop of K steps.

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
          draft: the draft of B rows, as wide as its bucket.
          verdict: the verdicts about B rows.
        """
        return state

    @property
    def stops_within(self) -> bool:
        """Whether `stop` is called after each draft token."""
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
        """Whether `cut` is called before a block is drawn."""
        return False

    def cut(self, rates: Array) -> Array:
        """Returns [B] int32, the number of a block's tokens to keep.

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

    def up_to(self, longest: int) -> Self | None:
        """Returns this schedule for drafts of at most `longest` tokens; None if not possible."""
        return None

    def tables(self) -> dict[str, Table]:
        """Returns, by role, the tables that hold the schedule's parameters."""
        return {}


BUCKETS = (1, 3, 7)  # target calls of 2, 4 and 8 tokens


def _are_lengths(value: object) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    integers = all(is_integer(length, 0) for length in value)
    return integers and sorted(set(value)) == list(value) and value[-1] >= 1


Buckets = Annotated[
    tuple[int, ...],
    Rule(_are_lengths, f"a tuple of ascending draft lengths, the last at least 1, as in {BUCKETS}"),
]


class Priced(Checked, Schedule):
    """A schedule with fields c and v, the costs of a draft and of each bucket's target call."""

    c: NonNegativeFloat
    v: tuple[float, ...]

    def __post_init__(self):
        super().__post_init__()
        v, buckets = self.v, self.buckets
        numbers = isinstance(v, tuple) and all(is_number(time) and time > 0 for time in v)
        if not numbers or len(v) != len(buckets):
            raise ValueError(
                f"{type(self).__name__}.v is {v!r}; give a tuple of positive numbers, one for each "
                f"of the buckets {buckets}"
            )

    def up_to(self, longest: int) -> Self | None:
        buckets: Any = shortened(self.buckets, longest)
        return dataclasses.replace(cast(Any, self), buckets=buckets, v=self.v[: len(buckets)])

    def times(self) -> list[float]:
        """Returns [1+K], the time of an iteration with 0 .. K draft tokens."""
        return time_of(self.c, self.v, self.buckets)


def time_of(c: float, v: tuple[float, ...], buckets: tuple[int, ...]) -> list[float]:
    """Returns [1+K], the time of an iteration with 0 .. K draft tokens.

    `c` is the time of a draft step, and `v` that of the target call of each bucket. The unit is the
    time of a target step of one token.
    """
    lengths = range(buckets[-1] + 1)
    return [c * length + v[bisect.bisect_left(buckets, length)] for length in lengths]


def tokens_of(rates: Array) -> Array:
    """Returns [B, 1+K], the expected number of tokens that a draft of 0 .. K tokens yields.

    `rates` [B, K] are the probabilities that each token is kept if those before it are.
    """
    more = jnp.cumsum(jnp.cumprod(rates, axis=1), axis=1)
    return 1 + jnp.pad(more, ((0, 0), (1, 0)))


def shortened(buckets: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """Returns the buckets for drafts of at most `longest` tokens."""
    longest = min(longest, buckets[-1])
    return (*(bucket for bucket in buckets if bucket < longest), longest)


@dataclasses.dataclass(frozen=True)
class UpToLongest(Checked, Schedule):
    """Always wants the longest draft; the base class of schedules that only stop.

    Args:
      buckets: static ascending draft lengths, see `Schedule`.
    """

    buckets: Buckets = dataclasses.field(default=BUCKETS, kw_only=True)

    def up_to(self, longest: int) -> Self:
        return dataclasses.replace(self, buckets=shortened(self.buckets, longest))
