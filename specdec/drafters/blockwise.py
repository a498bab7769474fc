"""A drafter of heads that predict the next tokens from the target's last hidden state.

Stern et al. 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models" (1811.03115).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax.numpy as jnp

from specdec.common.values import Checked, check_has
from specdec.drafters.block_drafts import check_length, check_states, last_state
from specdec.drafters.draft_loop import draft_block
from specdec.drafters.drafter import Drawing, Sampler
from specdec.models.contract.model import Target
from specdec.models.heads import Heads
from specdec.types import Array, Cache, Context, ContextTarget, Draft, Params, Part, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Blockwise(Checked, Drawing):
    """Drafts one token with each head, from the target's state that produced the pending token.

    The paper's first head is the target's own prediction, here the pending token. One target call
    verifies a draft and prepares the next one: the heads read its hidden state at the last accepted
    token. Before the first target call there is no such state, and no token is drafted.

    Args:
      heads: a `models.heads.Heads`, trained on this target's states.
      sampling: the rule that draft tokens are drawn with, usually the target's.
      role: the role of the heads' parameters.
    """

    heads: Heads
    sampling: Sampler
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.heads is not None:  # the command line has a better message
            remedy = "heads on a target's states, such as models.heads.Heads(config)"
            check_has("Blockwise.heads", self.heads, "ahead config", remedy)

    @property
    def reads_hidden(self) -> bool:
        return True

    @property
    def block(self) -> int:
        """The largest number of drafted tokens."""
        return self.heads.config.heads

    def models(self) -> dict[str, Target]:
        return {self.role: self.heads}

    def with_models(self, models: Mapping[str, Target]) -> Blockwise:
        return dataclasses.replace(self, heads=models.get(self.role, self.heads))

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns one call of all heads."""
        return (Part(self.role, self.block, min(length, 1)),)

    def timed(self, target: Target) -> dict[str, Callable]:
        """Returns, by role, a call of all heads on one state, with the projection to logits."""

        def call(trees: Mapping[str, PyTree], tokens: Array, cache: Cache):
            width = self.heads.states_dim
            state = jnp.broadcast_to(tokens[:, :1, None], (len(tokens), 1, width))
            logits = self._logits(target, trees["target"], trees[self.role], state)
            fed = cache.rewind(cache.length + tokens.shape[1])
            return jnp.argmax(logits, axis=-1).astype(jnp.int32), fed

        return {self.role: call}

    def init(self, params: Params, context: Context) -> PyTree:
        check_length(f"Blockwise has {self.block} heads", self.block, context)
        check_states("heads", self.heads.states_dim, context)
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, heads = request.context, params[self.role]
        logits = self._logits(context.target, params["target"], heads, last_state(context))
        # Before the first target call there is no state for the heads to read.
        asked = request._replace(want=jnp.where(context.length > 1, request.want, 0))
        return draft_block(logits[:, : request.longest], asked, self.sampling), state

    def _logits(self, target: ContextTarget, params: PyTree, heads: PyTree, state: Array) -> Array:
        """Returns logits [B, heads, V] for a state [B, 1, D]."""
        return target.logits(params, self.heads.ahead(heads, state)[:, 0])
