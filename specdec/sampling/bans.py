"""Processors that exclude tokens. Names and meanings are those of Hugging Face's generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from specdec.types import Array, History
from specdec.values import Checked, NonNegativeInt, PositiveInt, Rule, TokenIds, check


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Checked):
    """Excludes what would make the last `size` tokens a sequence that the text already has.

    The start token counts as a token of the text.

    size: n, at least 1; with 1 no token comes twice.
    """

    size: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        tokens, length = history.tokens, history.length
        index = jnp.arange(len(tokens))
        repeats = (index >= self.size - 1) & (index < length)
        for back in range(1, self.size):
            repeats &= jnp.roll(tokens, back) == tokens[length - back]
        return logits.at[tokens].min(jnp.where(repeats, -jnp.inf, jnp.inf))


def _is_list(given: object) -> bool:
    return isinstance(given, list | tuple) and bool(given)


@dataclasses.dataclass(frozen=True)
class NoBadWords(Checked):
    """Excludes the last token of each of some sequences, where the text ends in those before it.

    A word is several sequences, as it begins a text or not: what a tokenizer makes of it in each
    place. A sequence of one stop id, which Hugging Face leaves out, is excluded as any other.
    """

    sequences: Annotated[tuple[tuple[int, ...], ...], Rule(_is_list, "sequences of token ids")]

    def __post_init__(self):
        super().__post_init__()
        for row in self.sequences:
            check("NoBadWords.sequences", row, TokenIds)
        object.__setattr__(self, "sequences", tuple(map(tuple, self.sequences)))

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token for row in self.sequences for token in row)

    def process(self, logits: Array, history: History) -> Array:
        tokens, length = history.tokens, history.length
        longest = max(map(len, self.sequences)) - 1
        before = np.full([len(self.sequences), longest], -1, np.int32)  # the newest last
        for row, sequence in zip(before, self.sequences, strict=True):
            row[longest - len(sequence) + 1 :] = sequence[:-1]
        at = length - longest + jnp.arange(longest)
        newest = jnp.where(at >= 1, tokens[jnp.maximum(at, 0)], -2)  # the start token is no word
        found = jnp.all((before == -1) | (before == newest[None]), axis=1)
        last = jnp.array([sequence[-1] for sequence in self.sequences])
        return logits.at[last].min(jnp.where(found, -jnp.inf, jnp.inf))


@dataclasses.dataclass(frozen=True)
class SuppressTokens(Checked):
    """Excludes tokens everywhere."""

    tokens: TokenIds

    @property
    def ids(self) -> tuple[int, ...]:
        return self.tokens

    def process(self, logits: Array, history: History) -> Array:
        return jnp.where(among(self.tokens, logits), -jnp.inf, logits)


@dataclasses.dataclass(frozen=True)
class SuppressTokensAtBegin(Checked):
    """Excludes tokens as the one output token with the index `position`."""

    tokens: TokenIds
    position: NonNegativeInt = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return self.tokens

    def process(self, logits: Array, history: History) -> Array:
        here = history.position == self.position
        return jnp.where(here & among(self.tokens, logits), -jnp.inf, logits)


@dataclasses.dataclass(frozen=True)
class MinLength(Checked):
    """No stop id among the first `length` tokens of an output, a prefix counted: Hugging Face's
    `min_new_tokens` (its `min_length` counts the start token as well)."""

    length: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        early = history.position < self.length
        return jnp.where(early & among(history.stop_ids, logits), -jnp.inf, logits)


def among(ids: Iterable[int], logits: Array) -> np.ndarray:
    """[V] bool, True for these ids."""
    return np.isin(np.arange(logits.shape[-1]), list(ids))
