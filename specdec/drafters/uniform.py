"""Every token with the same probability: the draft that needs nothing at all."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import TokenByToken
from specdec.sampling import Sampling
from specdec.types import Context, Params, PyTree, SamplingRule


@dataclasses.dataclass(frozen=True)
class Uniform(TokenByToken):
    """Draws q(x) = 1 / V. Leviathan et al. 2022, section 3.6: it improves every model a little.

    Of a target with probabilities p it has alpha = sum_x min(p(x), 1 / V): 1 / V where the target
    is sure of a token. It is here because theory can be compared with it exactly.
    """

    @property
    def sampling(self) -> SamplingRule:
        """What it draws with, whatever the target does."""
        return Sampling()

    def drawing_with(self, sampling: SamplingRule) -> Uniform:
        """Returns this drafter: it draws as it does whatever the sampling is."""
        return self

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        assert context.vocab_size is not None
        logits = jnp.zeros([context.tokens.shape[0], context.vocab_size], jnp.float32)
        return Steps(logits, lambda carry, tokens: (logits, carry), ())
