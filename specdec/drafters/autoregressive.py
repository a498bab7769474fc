"""A smaller model with the same vocabulary drafts token by token (Leviathan et al. 2022)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import struct

from specdec.common.values import Checked
from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import Sampler, TokenByToken
from specdec.drafters.feeding import catch_up
from specdec.drafters.matching import slices
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target, check_model
from specdec.models.contract.views import read_by
from specdec.types import Array, Cache, Context, Draft, Params, Part, PyTree


class Memory(struct.PyTreeNode):
    """The KV cache of a draft model, and the last draft that the model made."""

    cache: Cache  # the model's
    tokens: Array  # [B, K] int32, the last draft
    start: Array  # [B] int32, the position of its first token

    def known(self, context: Context) -> Cache:
        """Returns the cache, cut before the first token where draft and committed text differ."""
        longest = self.tokens.shape[1]
        index = jnp.arange(longest)[None]
        differs = slices(context.tokens, self.start, longest) != self.tokens
        differs |= self.start[:, None] + index >= context.length[:, None]
        agreed = self.start + jnp.min(jnp.where(differs, index, longest), axis=1)
        return self.cache.rewind(jnp.minimum(self.cache.length, agreed))


@dataclasses.dataclass(frozen=True)
class Autoregressive(Checked, TokenByToken):
    """Drafts token by token with its own model.

    The state is the model's cache and the last draft. At each call, the drafter compares this draft
    with the committed text. It keeps the cache entries of their common prefix, and feeds the later
    committed tokens again. With n the position of the pending token:

      accepted 2 of 3         n                    accepted 3 of 3              n
      committed   .. a x1 x2  c                    committed   .. a x1 x2  x3   c
      fed         .. a x1 x2 (x3 is never fed)     fed         .. a x1 x2       <- x3 is missing
      first step           [x2 c]                  first step             [x3  c]

    The first step of each draft feeds two tokens, at positions n-1 and n. It fills the hole that
    full acceptance leaves, and otherwise rewrites equal values. If more tokens are missing,
    because the drafter was not called for some iterations, it first catches up in wider blocks.

    Args:
      model: any `Target`. Its vocabulary may be padded to another width than the target's.
      sampling: the rule that draft tokens are drawn with, usually the target's.
      view: maps the target's inputs to those that the model reads, as `NoSource()` or a named
        function does. None if both models read the same inputs.
      role: the role of the model's parameters, if a drafter has several models.

    Example:

    >>> from specdec.sampling import Greedy
    >>> from specdec.testing import TableTarget
    >>> drafter = Autoregressive(TableTarget(vocab_size=11), Greedy())
    >>> [(part.width, part.calls) for part in drafter.parts(length=5)]  # model calls of a draft
    [(2, 1), (1, 4)]
    """

    model: Target
    sampling: Sampler
    view: Callable[[PyTree], PyTree] | None = None
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.model is not None:  # the command line has a better message
            check_model("Autoregressive.model", self.model)

    def models(self) -> dict[str, Target]:
        return {self.role: self.model}

    def with_models(self, models: Mapping[str, Target]) -> Autoregressive:
        return dataclasses.replace(self, model=models.get(self.role, self.model))

    def views(self) -> dict[str, Callable[[PyTree], PyTree]]:
        return {self.role: read_by(self.model, self.view)} if self.view else {}

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns a first call of two tokens, and a one-token call for each further draft token."""
        return Part(self.role, 2, min(length, 1)), Part(self.role, 1, max(length - 1, 0))

    def init(self, params: Params, context: Context) -> PyTree:
        inputs = context.inputs
        if self.view:
            inputs = read_by(self.model, self.view)(inputs)
        cache = read(self.model, params[self.role], inputs, context.cache.capacity, context.cache)
        longest = context.cache.capacity - context.tokens.shape[1] + 1  # K, see `Plan.capacity`
        drafted = jnp.zeros([len(context.length), longest], jnp.int32)
        return Memory(cache, drafted, jnp.zeros_like(context.length))

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        """Returns the first draft token's logits [B, any width], and the call for later logits."""
        memory: Memory = state
        pending = context.length - 1  # [B] n, the position of the pending token
        previous = jnp.maximum(pending - 1, 0)
        with jax.named_scope("catch_up"):
            cache = memory.known(context)
            cache = self._catch_up(params, context, cache, previous, width=longest + 1)

        output, cache = self.model.decode(
            params[self.role], slices(context.tokens, previous, 2), cache
        )
        # At the start of a text the pair is the start token and garbage, so the first row counts.
        logits = jnp.take_along_axis(output.logits, (pending - previous)[:, None, None], 1)[:, 0]
        cache = cache.rewind(pending + 1)

        def advance(cache: Cache, tokens: Array) -> tuple[Array, Cache]:
            output, cache = self.model.decode(params[self.role], tokens[:, None], cache)
            return output.logits[:, 0], cache

        return Steps(logits, advance, cache)

    def end(self, cache: Cache, draft: Draft, context: Context, state: PyTree) -> PyTree:
        """Returns the state after a draft; `cache` holds all draft tokens but the last one."""
        memory: Memory = state
        room = memory.tokens.shape[1] - draft.tokens.shape[1]
        return Memory(cache, jnp.pad(draft.tokens, ((0, 0), (0, room))), context.length)

    def _catch_up(
        self, params: Params, context: Context, cache: Cache, until: Array, width: int
    ) -> Cache:
        """Fills the cache with the committed tokens before position `until` [B]."""
        known = params[self.role], context.tokens
        return catch_up(self.model, *known, cache, until=until, width=width)
