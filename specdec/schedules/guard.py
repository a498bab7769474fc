"""Limits another schedule's drafts, so that poor drafts cannot make a text much slower."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax.numpy as jnp
from flax import struct

from specdec.common.values import (
    NonNegativeFloat,
    PositiveInt,
    Rule,
    check_is,
    is_number,
    number,
)
from specdec.schedules.schedule import Priced, Schedule, Signals, shortened
from specdec.types import Array, Draft, Params, PyTree, Table, Verdict


def _are_prefills(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return all(map(is_number, value)) and 0 <= value[0] <= value[1]


Limit = Annotated[float, number(lambda x: x > 1, "a number above 1, as in 1.05")]
Prefill = Annotated[
    tuple[float, float],
    Rule(
        _are_prefills, "the target's prefill time and that of all models, no less, as in (2.0, 2.5)"
    ),
]


class Account(struct.PyTreeNode):
    """The costs of a text so far."""

    guarded: PyTree  # the other schedule's state
    spent: Array  # [B] float32, without the target's prefill, in target steps of one token
    tokens: Array  # [B] float32, written


@dataclasses.dataclass(frozen=True)
class Guard(Priced):
    """Limits how much slower than the target alone a text can become, however poor the drafter is.

    The constants c, v and prefill are the assumed costs. A draft is cut to the longest affordable
    length. A length is affordable if rejecting all of it would leave the time of the text at most

      a + tokens + (limit - 1) (a + max(tokens, horizon))   target steps,

    where a is the target's prefill. A poor drafter is therefore tried now and then. One that
    improves is used fully as soon as its accepted tokens offset its rejected drafts. The time of
    the drafter's own prefill is spent before the first token. If it is more than the limit allows,
    the drafter waits until the text is long enough.

    A text that ends before `horizon` tokens may exceed the limit by what the horizon allowed. Two
    costs are not counted: catching up after a pause, and the other rows of a batch, which share the
    target's call. The limit applies to texts that are decoded one by one.

    Args:
      schedule: the guarded schedule. Its lengths and its stopping rule apply when a draft is
        affordable.
      c: the time of a draft step, divided by that of a target step of one token.
      v: the time of the target call of each bucket, in the same unit. The buckets are those of
        `schedule`, and 0 for a call without a draft.
      limit: the largest time of a text relative to the target alone, more than 1.
      horizon: the limit holds for texts of at least this number of tokens.
      prefill: the time of the target's prefill, and of all models' prefills, in the same unit.
    """

    schedule: Schedule
    c: NonNegativeFloat
    v: tuple[float, ...]
    limit: Limit = 1.05
    horizon: PositiveInt = 32
    prefill: Prefill = (0.0, 0.0)

    def __post_init__(self):
        check_is("Guard.schedule", self.schedule, Schedule, "a schedule, such as Fixed(4)")
        super().__post_init__()

    @property
    def buckets(self) -> tuple[int, ...]:
        buckets = self.schedule.buckets
        return buckets if buckets[0] == 0 else (0, *buckets)

    def up_to(self, longest: int) -> Guard | None:
        schedule = self.schedule.up_to(longest)
        v = self.v[: len(shortened(self.buckets, longest))]
        return schedule and dataclasses.replace(self, schedule=schedule, v=v)

    def tables(self) -> dict[str, Table]:
        return self.schedule.tables()

    def init(self, batch: int) -> Account:
        alone, all_models = self.prefill
        spent = jnp.full([batch], all_models - alone, jnp.float32)
        return Account(self.schedule.init(batch), spent, jnp.zeros([batch], jnp.float32))

    def want(self, state: Account) -> Array:
        tokens = state.tokens + 1  # the least that a call yields
        alone = self.prefill[0] + jnp.maximum(tokens, self.horizon)
        room = tokens + (self.limit - 1) * alone - state.spent
        affordable = self._time()[1:][None] <= room[:, None]
        longest = jnp.sum(jnp.cumprod(affordable, axis=1), axis=1)
        return jnp.minimum(self.schedule.want(state.guarded), longest).astype(jnp.int32)

    def update(self, state: Account, draft: Draft, verdict: Verdict) -> Account:
        return Account(
            self.schedule.update(state.guarded, draft, verdict),
            state.spent + self._time()[draft.length],
            state.tokens + verdict.num_accepted + 1,
        )

    @property
    def stops_within(self) -> bool:
        return self.schedule.stops_within

    def stop(
        self, params: Params, carry: Account, index: Array, probs: Array, tokens: Array
    ) -> tuple[Account, Array]:
        guarded, stopped = self.schedule.stop(params, carry.guarded, index, probs, tokens)
        return carry.replace(guarded=guarded), stopped

    @property
    def cuts(self) -> bool:
        return self.schedule.cuts

    def cut(self, rates: Array) -> Array:
        return self.schedule.cut(rates)

    @property
    def replayable(self) -> bool:
        return self.schedule.replayable

    def stops(self, params: Params, signals: Signals) -> Array:
        return self.schedule.stops(params, signals)

    def _time(self) -> Array:
        """Returns [1+K], the time of an iteration with 0 .. K draft tokens."""
        return jnp.array(self.times(), jnp.float32)
