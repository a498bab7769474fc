"""A drafter of uniformly distributed tokens, which needs no model and no table."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import TokenByToken
from specdec.sampling import Sampling
from specdec.types import Context, Params, PyTree, SamplingRule


@dataclasses.dataclass(frozen=True)
class Uniform(TokenByToken):
    """Draws from q(x) = 1 / V (Leviathan et al. 2022, section 3.6).

    Even this drafter speeds up any target a little.

    For a target with probabilities p, alpha = sum_x min(p(x), 1 / V), which is 1 / V if the target
    is certain. So the measured alpha can be compared with an exact one.
    """

    @property
    def sampling(self) -> SamplingRule:
        """The drafter's own sampling rule, independent of the target's."""
        return Sampling()

    def drawing_with(self, sampling: SamplingRule) -> Uniform:
        """Returns this drafter unchanged, because its sampling rule is fixed."""
        return self

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        assert context.vocab_size is not None
        logits = jnp.zeros([context.tokens.shape[0], context.vocab_size], jnp.float32)
        return Steps(logits, lambda carry, tokens: (logits, carry), ())
