"""A verifier of one's own: the target draws by itself, and a draft token is kept iff it was drawn.

    specdec verify --gin_file=demo_sampled.gin --gin_file=examples/own_draw.gin --limit=8

It is exact, and simpler than speculative sampling (Leviathan et al. 2022), because it never asks
what the drafter thought:

    accept_i   = p_i(x_i)
    residual_n = p_{n+1} without the refused token, normalised

The first line is the probability that the target's own draw is x_i, the second the law of that draw
given that it is not. The price is acceptance: sum_x q(x) p(x), where the ratio rule keeps
sum_x min(q(x), p(x)). For a draft that is certain of its token the two are the same.

`specdec.testing.check_verifier(OwnDraw())` proves the law in float64, for any p and q, and tests it
through the compiled loop; `specdec verify` does so on the models of a run.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.types import Array, Draft, Scores
from specdec.verifiers import Verifier


@dataclasses.dataclass(frozen=True)
class OwnDraw(Verifier):
    """Keeps draft token i with the probability that the target gives it. Exact.

    `accept` and `residual` see one row and hold no randomness (`Verifier`), so that
    their law can be computed; the uniforms are compared elsewhere. They keep the dtype of
    `scores.probs`, which is float64 in a proof.
    """

    exact: ClassVar[bool] = True  # who does not say so is reported as NOT EXACT

    def accept(self, draft: Draft, scores: Scores) -> Array:
        """[K] p_i(x_i); row K of the scores is about the token behind the draft."""
        rows = jnp.arange(draft.tokens.shape[0])
        return scores.probs[rows, draft.tokens]

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        """[V] the law of the token after n accepted ones, n < length of the draft."""
        p = scores.probs[n]
        refused = jax.nn.one_hot(draft.tokens[n], p.shape[-1], dtype=p.dtype)
        others = p * (1 - refused)
        total = jnp.sum(others)
        # Nothing else to draw: then the token had probability 1, and was not refused.
        return jnp.where(total > 0, others / total, p)
