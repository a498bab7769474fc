"""Processors that leave one token."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.sampling.bans import among
from specdec.types import Array, History
from specdec.values import Checked, NonNegativeInt, PositiveInt, TokenIds


@dataclasses.dataclass(frozen=True)
class ForcedTokens(Checked):
    """A sequence that every output has, from the token with the index `position` on.

    At 0 it is a prefix, which `decode(prefix=)` feeds in one call; of one token it is Hugging
    Face's `forced_bos_token_id`.
    """

    tokens: TokenIds
    position: NonNegativeInt = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return self.tokens

    def process(self, logits: Array, history: History) -> Array:
        at = history.position - self.position
        here = (at >= 0) & (at < len(self.tokens))
        token = jnp.array(self.tokens)[jnp.clip(at, 0, len(self.tokens) - 1)]
        forced = jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)
        return jnp.where(here, forced.astype(logits.dtype), logits)


@dataclasses.dataclass(frozen=True)
class ForcedEOS(Checked):
    """A stop id as token number `length` of an output at the latest: Hugging Face's
    `forced_eos_token_id`, which does so at its longest length."""

    length: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        if not history.stop_ids:
            return logits
        late = history.position >= self.length - 1
        forced = jnp.where(among(history.stop_ids, logits), jnp.zeros_like(logits), -jnp.inf)
        return jnp.where(late, forced, logits)
