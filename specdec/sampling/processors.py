"""Processors of logits, and their order. Names and meanings are those of Hugging Face's generation.

Penalties make tokens less likely the more a text has of them, bans exclude tokens, and what is
forced is the one token that is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from specdec.common.values import (
    Checked,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Rule,
    TokenIds,
    check,
)
from specdec.types import Array, History, LogitsProcessor


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Checked, LogitsProcessor):
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
class FrequencyPenalty(Checked, LogitsProcessor):
    """Takes `penalty` nats off a token's logit for each time that the output has it."""

    penalty: Number

    def process(self, logits: Array, history: History) -> Array:
        return logits - self.penalty * counts(history, logits.shape[-1], first=1)


@dataclasses.dataclass(frozen=True)
class PresencePenalty(FrequencyPenalty):
    """Takes `penalty` nats off a token's logit if the output has it."""

    def process(self, logits: Array, history: History) -> Array:
        return logits - self.penalty * (counts(history, logits.shape[-1], first=1) > 0)


def counts(history: History, size: int, first: int) -> Array:
    """Counts each token of a text from index `first` on, [V]; 1 leaves out the start token."""
    index = jnp.arange(len(history.tokens))
    within = (index >= first) & (index < history.length)
    return jnp.zeros([size], jnp.int32).at[history.tokens].add(within)


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Checked, LogitsProcessor):
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
class NoBadWords(Checked, LogitsProcessor):
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
class MinLength(Checked, LogitsProcessor):
    """Excludes stop ids among the first `length` tokens of an output, a prefix counted.

    It is Hugging Face's `min_new_tokens`; its `min_length` counts the start token as well.
    """

    length: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        early = history.position < self.length
        return jnp.where(early & among(history.stop_ids, logits), -jnp.inf, logits)


@dataclasses.dataclass(frozen=True)
class _NamesTokens(Checked, LogitsProcessor):
    """A processor about some tokens."""

    tokens: TokenIds

    @property
    def ids(self) -> tuple[int, ...]:
        return self.tokens


@dataclasses.dataclass(frozen=True)
class _NamesPosition(_NamesTokens):
    """A processor about some tokens from one place of the output on."""

    position: NonNegativeInt = 0


class ForcedTokens(_NamesPosition):
    """Forces a sequence that every output has, from the token with the index `position` on.

    At 0 it is a prefix, which `decode(prefix=)` feeds in one call; of one token it is Hugging
    Face's `forced_bos_token_id`.
    """

    def process(self, logits: Array, history: History) -> Array:
        at = history.position - self.position
        here = (at >= 0) & (at < len(self.tokens))
        token = jnp.array(self.tokens)[jnp.clip(at, 0, len(self.tokens) - 1)]
        forced = jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)
        return jnp.where(here, forced.astype(logits.dtype), logits)


@dataclasses.dataclass(frozen=True)
class ForcedEOS(Checked, LogitsProcessor):
    """Forces a stop id as token number `length` of an output at the latest.

    It is Hugging Face's `forced_eos_token_id`, which does so at its longest length.
    """

    length: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        late = history.position >= self.length - 1
        return jnp.where(late, ends(logits, history.stop_ids), logits)


class SuppressTokens(_NamesTokens):
    """Excludes tokens everywhere."""

    def process(self, logits: Array, history: History) -> Array:
        return jnp.where(among(self.tokens, logits), -jnp.inf, logits)


class SuppressTokensAtBegin(_NamesPosition):
    """Excludes tokens as the one output token with the index `position`."""

    def process(self, logits: Array, history: History) -> Array:
        here = history.position == self.position
        return jnp.where(here & among(self.tokens, logits), -jnp.inf, logits)


def among(ids: Iterable[int], logits: Array) -> np.ndarray:
    """Returns [V] bool, True for these ids."""
    return np.isin(np.arange(logits.shape[-1]), list(ids))


def ends(logits: Array, stop_ids: tuple[int, ...]) -> Array:
    """Returns the logits of a text that can only end, [V]; without stop ids they are as given."""
    if not stop_ids:
        return logits
    return jnp.where(among(stop_ids, logits), jnp.zeros_like(logits), -jnp.inf)


_ORDER: tuple[type, ...] = (
    RepetitionPenalty,
    FrequencyPenalty,
    PresencePenalty,
    NoRepeatNGram,
    NoBadWords,
    MinLength,
    ForcedTokens,
    ForcedEOS,
    SuppressTokens,
    SuppressTokensAtBegin,
)


def in_order(
    *,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    no_repeat_ngram_size: int = 0,
    bad_words_ids: Sequence[Sequence[int]] = (),
    min_length: int = 0,
    forced_prefix_ids: Sequence[int] = (),
    forced_eos_length: int | None = None,
    suppress_tokens: Sequence[int] = (),
    begin_suppress_tokens: Sequence[int] = (),
    others: Sequence[LogitsProcessor] = (),
) -> tuple[LogitsProcessor, ...]:
    """Returns the processors that these settings ask for; names are those of Hugging Face.

    Frequency and presence, which it lacks, come behind the repetition penalty. What is suppressed
    at the begin is so behind a forced prefix. `others` are one's own, and come last.

    Raises:
      ValueError: a setting that is none, or a token that is both forced and suppressed.
    """
    if both := set(forced_prefix_ids) & set(suppress_tokens):
        raise ValueError(
            f"token {min(both)} is in forced_prefix_ids and in suppress_tokens; take it out of one"
        )
    given = (  # for each kind of _ORDER: whether it is asked for, and its fields
        (repetition_penalty != 1, repetition_penalty),
        (frequency_penalty != 0, frequency_penalty),
        (presence_penalty != 0, presence_penalty),
        (no_repeat_ngram_size != 0, no_repeat_ngram_size),
        (bad_words_ids, tuple(bad_words_ids)),
        (min_length != 0, min_length),
        (forced_prefix_ids, tuple(forced_prefix_ids)),
        (forced_eos_length is not None, forced_eos_length),
        (suppress_tokens, tuple(suppress_tokens)),
        (begin_suppress_tokens, tuple(begin_suppress_tokens), len(forced_prefix_ids)),
    )
    made = (kind(*fields) for kind, (asked, *fields) in zip(_ORDER, given, strict=True) if asked)
    return (*made, *others)


def ordered(processors: Sequence[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    """Returns the processors in the order of `in_order`, one's own last."""
    places = {kind: place for place, kind in enumerate(_ORDER)}
    return tuple(sorted(processors, key=lambda one: places.get(type(one), len(places))))


def filled_in(
    own: Sequence[LogitsProcessor], others: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """Returns `own` processors and, of the kinds that it lacks, those of `others`, in order."""
    kinds = {type(one) for one in own}
    return ordered([*own, *(one for one in others if type(one) not in kinds)])
