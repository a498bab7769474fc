"""Processors of logits, and their order. Names and meanings are those of Hugging Face's generation.

Penalties make tokens less likely the more often a text has them. Bans exclude tokens. A forced
token excludes all others.
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
    """Divides the positive logits of tokens that the text has, and multiplies the negative ones.

    CTRL (Keskar et al. 2019, section 4.1), in Hugging Face's form. The text includes the start
    token, and a decoder-only model's prompt.

    Args:
      penalty: above 0. 1 changes nothing; a value below 1 rewards repetition.
    """

    penalty: PositiveFloat

    def process(self, logits: Array, history: History) -> Array:
        seen = counts(history, logits.shape[-1], first=0) > 0
        penalised = jnp.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return jnp.where(seen, penalised, logits)


@dataclasses.dataclass(frozen=True)
class FrequencyPenalty(Checked, LogitsProcessor):
    """Subtracts `penalty` nats from a token's logit for each time that the output has it.

    Args:
      penalty: in nats.
    """

    penalty: Number

    def process(self, logits: Array, history: History) -> Array:
        return logits - self.penalty * counts(history, logits.shape[-1], first=history.output)


@dataclasses.dataclass(frozen=True)
class PresencePenalty(FrequencyPenalty):
    """Subtracts `penalty` nats from a token's logit if the output has it.

    Args:
      penalty: in nats.
    """

    def process(self, logits: Array, history: History) -> Array:
        times = counts(history, logits.shape[-1], first=history.output)
        return logits - self.penalty * (times > 0)


def counts(history: History, size: int, first: Array | int) -> Array:
    """Returns how often the text has each token, [V], from index `first` on."""
    index = jnp.arange(len(history.tokens))
    within = (index >= first) & (index < history.length)
    return jnp.zeros([size], jnp.int32).at[history.tokens].add(within)


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Checked, LogitsProcessor):
    """Excludes tokens that would repeat an n-gram of the text, which includes the start token.

    Args:
      size: n, at least 1. With 1, no token occurs twice.
    """

    size: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        tokens, length = history.tokens, history.length
        index = jnp.arange(len(tokens))
        repeats = (index >= self.size - 1) & (index < length)
        for back in range(1, self.size):
            repeats &= jnp.roll(tokens, back) == tokens[length - back]
        return logits.at[tokens].min(jnp.where(repeats, -jnp.inf, jnp.inf))


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value)


@dataclasses.dataclass(frozen=True)
class NoBadWords(Checked, LogitsProcessor):
    """Excludes the last token of a forbidden sequence if the text ends with the tokens before it.

    A word is usually several sequences, because a tokenizer splits it differently at the start of a
    text. Unlike in Hugging Face, a sequence of one stop id is excluded too.

    Args:
      sequences: token ids of each forbidden sequence.
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
        first = 1 if history.begin is None else 0  # without a prompt, the start token is no word
        newest = jnp.where(at >= first, tokens[jnp.maximum(at, 0)], -2)
        matches = jnp.all((before == -1) | (before == newest[None]), axis=1)
        last = jnp.array([sequence[-1] for sequence in self.sequences])
        return logits.at[last].min(jnp.where(matches, -jnp.inf, jnp.inf))


@dataclasses.dataclass(frozen=True)
class MinLength(Checked, LogitsProcessor):
    """Excludes stop ids among the first `length` tokens of an output, including a forced prefix.

    It is Hugging Face's `min_new_tokens`; its `min_length` also counts the start token.

    Args:
      length: in tokens.
    """

    length: PositiveInt

    def process(self, logits: Array, history: History) -> Array:
        early = history.position < self.length
        return jnp.where(early & among(history.stop_ids, logits), -jnp.inf, logits)


@dataclasses.dataclass(frozen=True)
class _NamesTokens(Checked, LogitsProcessor):
    """Base of processors that have a field of token ids."""

    tokens: TokenIds

    @property
    def ids(self) -> tuple[int, ...]:
        return self.tokens


@dataclasses.dataclass(frozen=True)
class _NamesPosition(_NamesTokens):
    """Base of processors that have token ids and a position in the output."""

    position: NonNegativeInt = 0


class ForcedTokens(_NamesPosition):
    """Forces a sequence of output tokens, from index `position` on.

    At position 0 it is a prefix, which `decode(prefix=)` feeds in one call. A prefix of one token
    is Hugging Face's `forced_bos_token_id`.
    """

    def process(self, logits: Array, history: History) -> Array:
        at = history.position - self.position
        here = (at >= 0) & (at < len(self.tokens))
        token = jnp.array(self.tokens)[jnp.clip(at, 0, len(self.tokens) - 1)]
        forced = jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)
        return jnp.where(here, forced.astype(logits.dtype), logits)


@dataclasses.dataclass(frozen=True)
class ForcedEOS(Checked, LogitsProcessor):
    """Forces a stop id as token number `length` of an output, if none came earlier.

    It is Hugging Face's `forced_eos_token_id`, which acts at the longest length.

    Args:
      length: in tokens.
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
    """Excludes tokens at one output index, `position`."""

    def process(self, logits: Array, history: History) -> Array:
        here = history.position == self.position
        return jnp.where(here & among(self.tokens, logits), -jnp.inf, logits)


def among(ids: Iterable[int], logits: Array) -> np.ndarray:
    """Returns [V] bool, True for the given ids."""
    return np.isin(np.arange(logits.shape[-1]), list(ids))


def ends(logits: Array, stop_ids: tuple[int, ...]) -> Array:
    """Returns logits [V] that leave only stop ids; unchanged without stop ids."""
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
    """Returns the processors of these settings in their order; the names are Hugging Face's.

    Frequency and presence penalties, which Hugging Face lacks, follow the repetition penalty.
    `ForcedTokens` at 0 and `SuppressTokensAtBegin` combine: suppression acts after the forced
    prefix.

    Args:
      repetition_penalty: see `RepetitionPenalty`; 1 for none.
      frequency_penalty: see `FrequencyPenalty`; 0 for none.
      presence_penalty: see `PresencePenalty`; 0 for none.
      no_repeat_ngram_size: n of `NoRepeatNGram`; 0 for none.
      bad_words_ids: the sequences of `NoBadWords`.
      min_length: tokens before which no stop id may come; 0 for none.
      forced_prefix_ids: token ids that begin every output.
      forced_eos_length: the index, counted from 1, at which a text must end; None for none.
      suppress_tokens: ids that are excluded everywhere.
      begin_suppress_tokens: ids that are excluded directly after the forced prefix.
      others: your own processors, which come last.

    Raises:
      ValueError: a setting is not valid, or a token is both forced and suppressed.
    """
    if both := set(forced_prefix_ids) & set(suppress_tokens):
        raise ValueError(
            f"token {min(both)} is in forced_prefix_ids and in suppress_tokens; take it out of one"
        )
    asked_for = (  # for each kind of _ORDER: whether it is needed, and its fields
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
    kinds = zip(_ORDER, asked_for, strict=True)
    return (*(kind(*fields) for kind, (asked, *fields) in kinds if asked), *others)


def ordered(processors: Sequence[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    """Returns the processors in the order of `in_order`; your own come last.

    Args:
      processors: in any order.
    """
    places = {kind: index for index, kind in enumerate(_ORDER)}
    return tuple(sorted(processors, key=lambda x: places.get(type(x), len(places))))


def filled_in(
    own: Sequence[LogitsProcessor], others: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """Returns `own`, and those of `others` whose kinds `own` lacks, in order.

    Args:
      own: processors that are all kept.
      others: processors of which missing kinds are added.
    """
    kinds = {type(processor) for processor in own}
    return ordered([*own, *(x for x in others if type(x) not in kinds)])
