"""Types and functions that schedules of several draft lengths share."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Annotated, Protocol, TypeVar

import jax.numpy as jnp

from specdec.common.values import Checked, Rule, is_integer, is_number
from specdec.schedules.schedule import Schedule
from specdec.types import Array

BUCKETS = (1, 3, 7)  # target calls of 2, 4 and 8 tokens

Self = TypeVar("Self", bound="UpToLongest")


def _are_lengths(value: object) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    integers = all(is_integer(length, 0) for length in value)
    return integers and sorted(set(value)) == list(value) and value[-1] >= 1


Buckets = Annotated[
    tuple[int, ...],
    Rule(_are_lengths, f"a tuple of ascending draft lengths, the last at least 1, as in {BUCKETS}"),
]


class _HasCosts(Protocol):
    @property
    def v(self) -> tuple[float, ...]: ...


def check_costs(schedule: _HasCosts, buckets: tuple[int, ...]) -> None:
    """Raises ValueError unless the schedule's v has one positive time for each bucket."""
    name, v = type(schedule).__name__, schedule.v
    numbers = isinstance(v, tuple) and all(is_number(time) and time > 0 for time in v)
    if not numbers or len(v) != len(buckets):
        raise ValueError(
            f"{name}.v is {v!r}; give a tuple of positive numbers, one for each of the buckets "
            f"{buckets}"
        )


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

    def up_to(self: Self, longest: int) -> Self:
        return dataclasses.replace(self, buckets=shortened(self.buckets, longest))
