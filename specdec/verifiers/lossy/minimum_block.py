"""NOT EXACT: keeps some tokens of each draft without asking the target."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check_is
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier


@dataclasses.dataclass(frozen=True)
class MinimumBlock(Checked, Verifier):
    """NOT EXACT. The minimum block size of Stern et al. 2018 (arXiv 1811.03115, section 5.3).

    Each call keeps at least `least` draft tokens, if there are that many. In the paper this lost
    much quality for little time.

    Args:
      verifier: decides about the other tokens, one by one.
      least: the number of tokens that are always kept.
    """

    verifier: Verifier
    least: PositiveInt

    def __post_init__(self):
        super().__post_init__()
        check_is(
            "MinimumBlock.verifier", self.verifier, Verifier, "a verifier, such as GreedyMatch()"
        )
        if self.verifier.rule != "first" or self.verifier.shared_noise:
            raise ValueError(
                f"MinimumBlock.verifier is {self.verifier}, which does not decide token by token; "
                "give another, such as SpeculativeSampling()"
            )

    @property
    def greedy_only(self) -> bool:
        return self.verifier.greedy_only

    @property
    def reads_beliefs(self) -> bool:
        return self.verifier.reads_beliefs

    def accept(self, draft: Draft, scores: Scores) -> Array:
        own = self.verifier.accept(draft, scores)
        return jnp.where(jnp.arange(own.shape[0]) < self.least, 1, own)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return self.verifier.residual(draft, scores, n)
