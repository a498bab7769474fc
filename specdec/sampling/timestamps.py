"""Whisper's rules for transcripts: their first tokens, and their timestamps."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, NonNegativeInt, Rule, is_integer
from specdec.types import Array, History, LogitsProcessor


def _are_ids(value: object) -> bool:
    if not isinstance(value, tuple) or not all(isinstance(row, tuple) and row for row in value):
        return False
    return all(is_integer(id, 0) for row in value for id in row)


@dataclasses.dataclass(frozen=True)
class Opening(Checked, LogitsProcessor):
    """Allows only the likeliest of given tokens at each of the first positions of a text.

    A single token is forced. Several may be Whisper's language ids: the likeliest is the sound's
    language, as in transformers' `detect_language`. Put it after processors that exclude such ids.

    Args:
      choices: the ids to choose from at each position, from the first on.
    """

    choices: Annotated[tuple[tuple[int, ...], ...], Rule(_are_ids, "token ids for each position")]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(id for choice in self.choices for id in choice)

    def process(self, logits: Array, history: History) -> Array:
        result, ids = logits, jnp.arange(logits.shape[-1])
        for position, choice in enumerate(self.choices):
            likeliest = jnp.asarray(choice)[jnp.argmax(logits[jnp.asarray(choice)])]
            only = jnp.where(ids == likeliest, 0.0, -jnp.inf).astype(logits.dtype)
            result = jnp.where(history.position == position, only, result)
        return result


@dataclasses.dataclass(frozen=True)
class Timestamps(Checked, LogitsProcessor):
    """Makes timestamps begin a text, come in pairs, and never go back.

    Radford et al. 2022 (2212.04356), section 4.5, in Hugging Face's form. Ids above
    `no_timestamps_id` are timestamps, in the order of time. A timestamp is taken if all of them
    together are likelier than any other token.

    Args:
      no_timestamps_id: the id that says that a text has no timestamps; it is excluded.
      end_id: the id that ends a text. Ids below it are words.
      position: the output index of the first timestamp, which is the length of a forced prefix.
      latest_first: the first timestamp is at most this number of steps after 0; None for no limit.
    """

    no_timestamps_id: NonNegativeInt
    end_id: NonNegativeInt
    position: NonNegativeInt = 0
    latest_first: NonNegativeInt | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.no_timestamps_id, self.end_id)

    def process(self, logits: Array, history: History) -> Array:
        tokens, length, first = history.tokens, history.length, self.no_timestamps_id + 1
        ids, count = jnp.arange(logits.shape[-1]), history.position - self.position
        is_time = ids >= first
        ends_in_time = (count >= 1) & (tokens[length - 1] >= first)
        is_open = ends_in_time & (count >= 2) & (tokens[length - 2] < first)  # half of a pair

        index = jnp.arange(len(tokens))
        inside = (index >= history.output + self.position) & (index < length)
        at = jnp.max(jnp.where(inside & (tokens >= first), index, -1))
        least = jnp.where(at >= 0, tokens[at] + ~is_open, first)

        banned = (ids == self.no_timestamps_id) | (is_time & (ids < least))
        banned |= jnp.where(is_open, ids < self.end_id, ends_in_time & is_time)
        late = False if self.latest_first is None else ids > first + self.latest_first
        banned |= (count == 0) & (~is_time | late)
        result = jnp.where(banned, -jnp.inf, logits)

        times = jax.nn.logsumexp(jnp.where(is_time, result, -jnp.inf))
        certain = times > jnp.max(jnp.where(is_time, -jnp.inf, result))
        result = jnp.where(certain & ~is_time, -jnp.inf, result)
        return jnp.where(count < 0, logits, result)  # `Opening` decides the tokens before
