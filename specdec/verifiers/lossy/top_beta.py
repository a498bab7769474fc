"""NOT EXACT: accept what is among the target's likeliest tokens, and nearly as likely."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import ByArgmax, Gap, gaps


@dataclasses.dataclass(frozen=True)
class TopBeta(Checked, ByArgmax):
    """NOT EXACT. Spec-Verification (Xia et al. 2023, arXiv 2203.16487, section 3.2).

    A token is kept if fewer than `beta` others are likelier, and the likeliest one is at most `tau`
    nats above it; behind the kept ones comes the likeliest token. beta = 1 is `GreedyMatch`, but
    for ties. The paper's code has 5 and 3.0.
    """

    beta: PositiveInt = 3
    tau: Gap = 1.0

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.beta, draft, scores) & (gaps(draft, scores) <= self.tau)


@dataclasses.dataclass(frozen=True)
class TopK(Checked, ByArgmax):
    """NOT EXACT. The top-k selection of Stern et al. 2018 (arXiv 1811.03115, section 5.1): a token
    is kept if fewer than k others are likelier."""

    k: PositiveInt

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return in_top(self.k, draft, scores)


def in_top(count: int, draft: Draft, scores: Scores) -> Array:
    """[K] bool: whether fewer than so many tokens are likelier than the draft's."""
    rows = jnp.arange(draft.tokens.shape[0])
    own = scores.logits[rows, draft.tokens]
    return jnp.sum(scores.logits[:-1] > own[:, None], axis=-1) < count
