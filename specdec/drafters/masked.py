"""A drafter whose model fills in a block of mask tokens in one call.

Xia et al. 2023, "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq
Generation" (2203.16487), section 3.1: the Spec-Drafter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import cast

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.drafters.block_drafts import (
    check_length,
    check_states,
    for_timing,
    last_state,
    mask_ids,
    neighbours,
    visible_in_block,
)
from specdec.drafters.draft_loop import draft_block, draft_loop
from specdec.drafters.drafter import Drawing, Sampler
from specdec.drafters.feeding import catch_up
from specdec.drafters.matching import slices
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Model, Target, check_model, decode_block
from specdec.types import Array, Context, Draft, Params, Part, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Masked(Checked, Drawing):
    """Drafts a block in one call of a model that was trained to fill in masks.

    Each draft token is drawn from a distribution of its own, independently of the others unless the
    model has a Markov head. A stopping rule of the schedule may end the draft after any token. It
    may also cut the draft before drawing if the model has a confidence head.

    The state is the model's cache. With three masks and a text that ends with tokens a and b:

      tokens        a  b  .  .  M  M  M        the dots are unused slots for text
      a, b see      earlier text and themselves
      masks see     the whole text and all masks
      positions     n-1 n        n+1 n+2 n+3

    Only the text stays in the cache. Setting its length removes the masks.

    Args:
      model: its `decode` takes `ancestors`, and the last ids of its embedding table are the masks.
      sampling: the rule that draft tokens are drawn with, usually the target's.
      masks: the number of masks of a block, and the longest draft. Every call feeds all of them.
      distinct: whether each place of a block has its own mask (the paper's distinct queries).
      reread: None if text attends only to earlier text, so that its keys and values are kept. If it
        is the longest output N, as in the paper, text also attends to the masks and is read again
        in each call.
      role: the role of the model's parameters.
    """

    model: Model
    sampling: Sampler
    masks: PositiveInt = 8
    distinct: bool = True
    reread: PositiveInt | None = None
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.model is not None:  # the command line has a better message
            check_model("Masked.model", self.model)

    @property
    def reads_hidden(self) -> bool:
        """Whether the model reads the target's states."""
        return self.model.states_dim is not None

    @property
    def block(self) -> int:
        """The largest number of drafted tokens."""
        return self.masks

    def models(self) -> dict[str, Target]:
        return {self.role: self.model}

    def spare_ids(self) -> dict[str, int]:
        """Returns the number of masks by role."""
        return {self.role: self.masks if self.distinct else 1}

    def with_models(self, models: Mapping[str, Target]) -> Masked:
        return dataclasses.replace(self, model=models.get(self.role, self.model))

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns one call, which is equally wide for short and long drafts."""
        return (Part(self.role, self._room + self.masks, min(length, 1)),)

    def timed(self, target: Target) -> dict[str, Callable]:
        """Returns the drafter's call, which projects only the masks' states and draws the block."""
        model = self.model

        def call(trees: Mapping[str, PyTree], tokens: Array, cache: PyTree):
            weights, states = trees[self.role], {}
            if self.reads_hidden:
                shape = *tokens.shape, model.states_dim
                states["states"] = jnp.broadcast_to(tokens[:, :, None], shape)
            output, fed = decode_block(model, weights, tokens, cache, **states)
            text, block = tokens[:, : self._room], tokens[:, self._room :]
            logits = model.logits(weights, output.hidden[:, self._room :])
            drafted = self._drafted(weights, logits, for_timing(block))
            text = jnp.where(drafted.tokens[:, :1] < 0, 0, text)  # so that drawing is not left out
            return jnp.concatenate([text, drafted.tokens], axis=1), fed

        return {self.role: call}

    def init(self, params: Params, context: Context) -> PyTree:
        check_length(f"Masked.masks is {self.masks}", self.masks, context)
        if self.reread not in (None, context.tokens.shape[1] - 1):
            raise ValueError(
                f"Masked.reread is {self.reread} and outputs have {context.tokens.shape[1] - 1} "
                "tokens; give this number, or None"
            )
        if (width := self.model.states_dim) is not None:
            check_states("blocks", width, context)
        capacity = max(context.tokens.shape[1], self._room) + self.masks
        return read(self.model, params[self.role], context.inputs, capacity, context.cache)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        model, context = self.model, request.context
        start = jnp.maximum(context.length - self._room, 0)
        width = min(self._room, context.tokens.shape[1])
        weights = params[self.role]
        hidden = context.hidden if self.reads_hidden else None
        cache = catch_up(
            model, weights, context.tokens, state, until=start, width=width, hidden=hidden
        )
        text = slices(context.tokens, start, self._room)
        ids = mask_ids(model.vocab_size, self.masks, self.distinct)
        block = jnp.concatenate([text, jnp.broadcast_to(ids, (len(start), self.masks))], axis=1)
        ancestors = visible_in_block(
            context.length - start, self._room, self.masks, self.reread is None
        )
        states = self._states(context, start)
        output, cache = decode_block(model, weights, block, cache, ancestors, **states)
        filled = output.hidden[:, self._room : self._room + request.longest]
        stop = request.stop
        if stop is not None and stop.cut is not None and model.has_confidence:
            likelihoods = jax.nn.sigmoid(model.confidence(weights, filled))
            request = request._replace(want=jnp.minimum(request.want, stop.cut(likelihoods)))
        draft = self._drafted(weights, model.logits(weights, filled), request)
        return draft, cache.rewind(context.length)

    def _drafted(self, params: PyTree, logits: Array, request: Request) -> Draft:
        """Draws a draft from the logits [B, K, V] of a block after the pending token."""
        if not self.model.has_markov:
            return draft_block(logits, request, self.sampling)
        behind = functools.partial(self.model.markov, params)
        steps = neighbours(behind, logits, request.context)
        return draft_loop(steps, request, self.sampling)[0]

    def _states(self, context: Context, start: Array) -> dict[str, Array]:
        """Returns the target's states of the text, then the pending token's state for each mask."""
        if not self.reads_hidden:
            return {}
        last = jnp.repeat(last_state(context), self.masks, axis=1)
        text = slices(cast(Array, context.hidden), start, self._room)
        return {"states": jnp.concatenate([text, last], axis=1)}

    @property
    def _room(self) -> int:
        """The text slots of a call: enough for the tokens of one target call, or for all text."""
        return (self.masks if self.reread is None else self.reread) + 1
