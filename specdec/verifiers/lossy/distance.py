"""NOT EXACT: accepts ids that are near the target's choice."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from specdec.common.values import Checked, NonNegativeInt
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import ByArgmax


@dataclasses.dataclass(frozen=True)
class Distance(Checked, ByArgmax):
    """NOT EXACT. The distance-based selection of Stern et al. 2018 (arXiv 1811.03115, section 5.2).

    A token is kept if its id differs from that of the likeliest token by at most `epsilon`. This
    makes sense if neighbouring ids have similar meanings: intensities of pixels (2 in the paper),
    not words.

    Args:
      epsilon: the largest difference of ids.
      ordered: the first and the last id of the ordered range; other ids must be equal. None orders
        all ids, including stop ids.
    """

    epsilon: NonNegativeInt
    ordered: tuple[int, int] | None = None
    exact: ClassVar[bool] = False

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        best = jnp.argmax(scores.logits, axis=-1)[:-1]
        near = jnp.abs(draft.tokens - best) <= self.epsilon
        if self.ordered is None:
            return near
        first, last = self.ordered
        both = jnp.stack([draft.tokens, best])
        within = jnp.all((both >= first) & (both <= last), axis=0)
        return (draft.tokens == best) | near & within
