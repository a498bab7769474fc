"""NOT EXACT: keep some tokens of each draft, whatever the target says."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from specdec.types import Array, Draft, Scores
from specdec.values import check_has, is_integer


@dataclasses.dataclass(frozen=True)
class MinimumBlock:
    """NOT EXACT. The minimum block size of Stern et al. 2018 (arXiv 1811.03115, section 5.3), which
    cost them much quality for little time: each call keeps `least` draft tokens at least, as far as
    there are any; about the others `verifier` decides, token by token.
    """

    verifier: Any
    least: int
    exact: ClassVar[bool] = False

    def __post_init__(self):
        check_has("MinimumBlock.verifier", self.verifier, "accept residual", "as GreedyMatch()")
        if getattr(self.verifier, "rule", "first") != "first" or self.shared_noise:
            raise ValueError(
                f"MinimumBlock.verifier is {self.verifier}, which does not decide token by token; "
                "give another, such as SpeculativeSampling()"
            )
        if not is_integer(self.least, 1):
            raise ValueError(f"MinimumBlock.least is {self.least!r}; give a positive integer")

    @property
    def greedy_only(self) -> bool:
        return getattr(self.verifier, "greedy_only", False)

    @property
    def shared_noise(self) -> bool:
        return getattr(self.verifier, "shared_noise", False)

    @property
    def reads_beliefs(self) -> bool:
        return getattr(self.verifier, "reads_beliefs", False)

    def accept(self, draft: Draft, scores: Scores) -> Array:
        own = self.verifier.accept(draft, scores)
        return jnp.where(jnp.arange(own.shape[0]) < self.least, 1, own)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return self.verifier.residual(draft, scores, n)
