"""A smaller model of the same vocabulary, run token by token (Leviathan et al. 2022)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from specdec.common.values import Checked
from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import Sampler, TokenByToken
from specdec.drafters.feeding import catch_up
from specdec.drafters.matching import slices
from specdec.models.inputs import read
from specdec.models.model import Target, check_model
from specdec.types import Array, Cache, Context, Params, Part, PyTree


class Memory(struct.PyTreeNode):
    """What a drafter that runs a model has fed to it."""

    cache: Any  # the model's
    tokens: Array  # [B, K] int32, the last draft
    start: Array  # [B] int32, the position of its first token

    def known(self, context: Context) -> Any:
        """The cache, rewound to where the last draft leaves the committed text."""
        longest = self.tokens.shape[1]
        index = jnp.arange(longest)[None]
        left = slices(context.tokens, self.start, longest) != self.tokens
        left |= self.start[:, None] + index >= context.length[:, None]
        kept = self.start + jnp.min(jnp.where(left, index, longest), axis=1)
        return self.cache.rewind(jnp.minimum(self.cache.length, kept))


@dataclasses.dataclass(frozen=True)
class Autoregressive(Checked, TokenByToken):
    """Drafts with a model of its own, whose parameters are those of its role.

    model: any `Target`. Its vocabulary may be padded to another width than the target's.
    sampling: what draft tokens are drawn with; usually the target's.
    view: what the model reads of the inputs, where that is not what the target reads: a function of
      them, which has a name, or `NoSource()`.
    role: whose parameters it runs with, where a drafter has several models.

    Its state is the model's cache, and what it drafted last. Nobody tells it what was accepted, or
    what others drafted meanwhile: at the next call it keeps what is a prefix of the committed text
    and repairs the rest. With n the pending position:

        accepted 2 of 3         n                    accepted 3 of 3              n
        committed   .. a x1 x2  c                    committed   .. a x1 x2  x3   c
        fed         .. a x1 x2 (x3 is never fed)     fed         .. a x1 x2       <- x3 is missing
        first step           [x2 c]                  first step             [x3  c]

    The first step of each draft is two tokens wide: it feeds positions n-1 and n, which fills the
    hole that full acceptance leaves and rewrites the same values otherwise. If more is missing,
    because the drafter was not asked for some iterations, it first catches up in wider blocks.
    """

    model: Target
    sampling: Sampler
    view: Callable[[PyTree], PyTree] | None = None
    role: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if self.model is not None:  # the command line says better what is missing
            check_model("Autoregressive.model", self.model)

    def models(self) -> dict[str, Any]:
        return {self.role: self.model}

    def with_models(self, models: Mapping[str, Any]) -> Autoregressive:
        return dataclasses.replace(self, model=models.get(self.role, self.model))

    def views(self) -> dict[str, Callable[[PyTree], PyTree]]:
        return {self.role: self.view} if self.view else {}

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """The first step is two tokens wide, the others have one."""
        return Part(self.role, 2, min(length, 1)), Part(self.role, 1, max(length - 1, 0))

    def init(self, params: Params, context: Context) -> PyTree:
        inputs = self.view(context.inputs) if self.view else context.inputs
        cache = read(self.model, params[self.role], inputs, context.cache.capacity, context.cache)
        longest = context.cache.capacity - context.tokens.shape[1] + 1  # K, see `Plan.capacity`
        drafted = jnp.zeros([len(context.length), longest], jnp.int32)
        return Memory(cache, drafted, jnp.zeros_like(context.length))

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        """The logits [B, any width] of the first token of a draft, of `longest` at most."""
        memory: Memory = state
        pending = context.length - 1  # [B] n, the position of the pending token
        previous = jnp.maximum(pending - 1, 0)
        with jax.named_scope("catch_up"):
            cache = memory.known(context)
            cache = self._catch_up(params, context, cache, previous, width=longest + 1)

        output, cache = self.model.decode(
            params[self.role], slices(context.tokens, previous, 2), cache
        )
        # At the very start the pair is the start token and garbage, and the first row is the one.
        logits = jnp.take_along_axis(output.logits, (pending - previous)[:, None, None], 1)[:, 0]
        cache = cache.rewind(pending + 1)

        def advance(cache: Cache, tokens: Array) -> tuple[Array, Cache]:
            output, cache = self.model.decode(params[self.role], tokens[:, None], cache)
            return output.logits[:, 0], cache

        return Steps(logits, advance, cache)

    def end(self, cache: Cache, tokens: Array, context: Context, state: PyTree) -> PyTree:
        """The state behind a draft of tokens [B, K], with the cache that they were fed to."""
        memory: Memory = state
        room = memory.tokens.shape[1] - tokens.shape[1]
        return Memory(cache, jnp.pad(tokens, ((0, 0), (0, room))), context.length)

    def _catch_up(
        self, params: Params, context: Context, cache: Cache, until: Array, width: int
    ) -> Cache:
        """Fills the cache with the committed tokens at positions < until, normally in no trips."""
        known = params[self.role], context.tokens
        return catch_up(self.model, *known, cache, until=until, width=width)
