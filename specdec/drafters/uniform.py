"""Every token with the same probability: the draft that needs nothing at all."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.drafters.loop import Steps, draft_loop
from specdec.sampling import Sampling
from specdec.types import Array, Context, Draft, Params, PyTree, SamplingRule, Stop


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Draws q(x) = 1 / V. Leviathan et al. 2022, section 3.6: it improves every model a little.

    Of a target with probabilities p it has alpha = sum_x min(p(x), 1 / V): 1 / V where the target
    is sure of a token. It is here because theory can be compared with it exactly.
    """

    @property
    def sampling(self) -> SamplingRule:
        """What it draws with, whatever the target does."""
        return Sampling()

    def init(self, params: Params, context: Context) -> PyTree:
        return ()

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        assert context.vocab_size is not None
        logits = jnp.zeros([keys.shape[0], context.vocab_size], jnp.float32)
        return draft_loop(
            Steps(logits, lambda state, tokens: (logits, state), state),
            context,
            keys=keys,
            want=want,
            stop=stop,
            sampling=self.sampling,
        )
