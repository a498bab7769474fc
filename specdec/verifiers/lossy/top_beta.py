"""NOT EXACT: accepts tokens among the target's likeliest ones, and nearly as likely."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import ByArgmax, Gap, gaps


@dataclasses.dataclass(frozen=True)
class TopBeta(Checked, ByArgmax):
    """NOT EXACT. Spec-Verification (Xia et al. 2023, arXiv 2203.16487, section 3.2).

    A token is kept if it is among the `beta` likeliest ones, and the likeliest one is at most `tau`
    nats above it. The likeliest token comes after the kept ones. Except for ties, beta = 1 is
    `GreedyMatch`. The paper's code has 5 and 3.0.

    Args:
      beta: a token is kept only if fewer than `beta` others are likelier.
      tau: the largest gap to the likeliest token's logit, in nats.
    """

    beta: PositiveInt = 3
    tau: Gap = 1.0

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.beta, draft, scores) & (gaps(draft, scores) <= self.tau)


@dataclasses.dataclass(frozen=True)
class TopK(Checked, ByArgmax):
    """NOT EXACT. The top-k selection of Stern et al. 2018 (arXiv 1811.03115, section 5.1).

    Args:
      k: a token is kept if fewer than k others are likelier.
    """

    k: PositiveInt

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.k, draft, scores)


def in_top(count: int, draft: Draft, scores: Scores) -> Array:
    """Returns [K] bool, whether fewer than `count` tokens are likelier than the draft's."""
    rows = jnp.arange(draft.tokens.shape[0])
    own = scores.logits[rows, draft.tokens]
    return jnp.sum(scores.logits[:-1] > own[:, None], axis=-1) < count
