"""Processors that make tokens less likely the more a text has of them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.types import Array, History
from specdec.values import Checked, Number, PositiveFloat


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Checked):
    """Divides a positive logit of a token that the text has, and multiplies a negative one.

    CTRL (Keskar et al. 2019, section 4.1), as Hugging Face has it: the start token counts as one of
    the text.

    penalty: above 0; 1 changes nothing, below 1 repetition is rewarded.
    """

    penalty: PositiveFloat

    def process(self, logits: Array, history: History) -> Array:
        seen = counts(history, logits.shape[-1], first=0) > 0
        penalised = jnp.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return jnp.where(seen, penalised, logits)


@dataclasses.dataclass(frozen=True)
class FrequencyPenalty(Checked):
    """Takes `penalty` nats off a token's logit for each time that the output has it."""

    penalty: Number

    def process(self, logits: Array, history: History) -> Array:
        return logits - self.penalty * counts(history, logits.shape[-1], first=1)


@dataclasses.dataclass(frozen=True)
class PresencePenalty(Checked):
    """Takes `penalty` nats off a token's logit if the output has it."""

    penalty: Number

    def process(self, logits: Array, history: History) -> Array:
        return logits - self.penalty * (counts(history, logits.shape[-1], first=1) > 0)


def counts(history: History, size: int, first: int) -> Array:
    """[V] how often a text has each token, from index `first` on: 1 leaves out the start token."""
    index = jnp.arange(len(history.tokens))
    within = (index >= first) & (index < history.length)
    return jnp.zeros([size], jnp.int32).at[history.tokens].add(within)
