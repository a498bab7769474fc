"""Processors from the settings of a generation, in Hugging Face's order."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.sampling.bans import (
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    SuppressTokens,
    SuppressTokensAtBegin,
)
from specdec.sampling.forced import ForcedEOS, ForcedTokens
from specdec.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from specdec.types import LogitsProcessor


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
    """The processors that these settings ask for, () for none; names are those of Hugging Face.

    Frequency and presence, which it lacks, come behind the repetition penalty. What is suppressed
    at the begin is so behind a forced prefix. `others` are one's own, and come last.

    Raises:
      ValueError: a setting that is none, or a token that is both forced and suppressed.
    """
    if both := set(forced_prefix_ids) & set(suppress_tokens):
        raise ValueError(
            f"token {min(both)} is in forced_prefix_ids and in suppress_tokens; take it out of one"
        )
    made: list[LogitsProcessor] = []
    if repetition_penalty != 1:
        made.append(RepetitionPenalty(repetition_penalty))
    if frequency_penalty != 0:
        made.append(FrequencyPenalty(frequency_penalty))
    if presence_penalty != 0:
        made.append(PresencePenalty(presence_penalty))
    if no_repeat_ngram_size != 0:
        made.append(NoRepeatNGram(no_repeat_ngram_size))
    if bad_words_ids:
        made.append(NoBadWords(tuple(bad_words_ids)))  # type: ignore[arg-type]
    if min_length != 0:
        made.append(MinLength(min_length))
    if forced_prefix_ids:
        made.append(ForcedTokens(tuple(forced_prefix_ids)))
    if forced_eos_length is not None:
        made.append(ForcedEOS(forced_eos_length))
    if suppress_tokens:
        made.append(SuppressTokens(tuple(suppress_tokens)))
    if begin_suppress_tokens:
        at = len(forced_prefix_ids)
        made.append(SuppressTokensAtBegin(tuple(begin_suppress_tokens), at))
    return (*made, *others)


_ORDER = (
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


def ordered(processors: Sequence[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    """Returns the processors in the order of `in_order`, one's own last."""
    places: dict[type, int] = {kind: place for place, kind in enumerate(_ORDER)}
    return tuple(sorted(processors, key=lambda one: places.get(type(one), len(places))))


def filled_in(
    own: Sequence[LogitsProcessor], others: Sequence[LogitsProcessor]
) -> tuple[LogitsProcessor, ...]:
    """Returns `own` processors and, of the kinds that it lacks, those of `others`, in order."""
    kinds = {type(one) for one in own}
    return ordered([*own, *(one for one in others if type(one) not in kinds)])
