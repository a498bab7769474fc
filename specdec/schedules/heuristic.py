"""Longer drafts after success, shorter ones after failure."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.schedules.schedule import BUCKETS, Buckets, Schedule, shortened
from specdec.types import Array, Draft, Verdict


@dataclasses.dataclass(frozen=True)
class Heuristic(Checked, Schedule):
    """Adds two tokens after a draft that was accepted entirely, removes one after any other.

    This is the rule of Hugging Face's assisted generation
    (`num_assistant_tokens_schedule="heuristic"`). A draft has at least one token. A call without a
    draft changes nothing.

    Args:
      start: tokens of a text's first draft.
      buckets: static ascending draft lengths, see `Schedule`; the last is the longest draft.
    """

    start: PositiveInt = 5
    buckets: Buckets = BUCKETS

    def __post_init__(self):
        super().__post_init__()
        if self.start > self.buckets[-1]:
            raise ValueError(
                f"Heuristic.start is {self.start!r}; give an integer from 1 to the longest draft, "
                f"{self.buckets[-1]}"
            )

    def up_to(self, longest: int) -> Heuristic:
        return Heuristic(min(self.start, longest), shortened(self.buckets, longest))

    def init(self, batch: int) -> Array:
        return jnp.full([batch], self.start, jnp.int32)

    def update(self, state: Array, draft: Draft, verdict: Verdict) -> Array:
        all_accepted = verdict.num_accepted == draft.length
        changed = jnp.clip(jnp.where(all_accepted, state + 2, state - 1), 1, self.buckets[-1])
        return jnp.where(draft.length > 0, changed, state)
