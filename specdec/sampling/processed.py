"""Logits processors in front of a sampling rule, and functions for rules with or without them."""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

import jax
import jax.numpy as jnp

from specdec.common.values import check_is
from specdec.sampling.processors import ends
from specdec.types import Array, History, LogitsProcessor, Prompt, SamplingRule


@dataclasses.dataclass(frozen=True)
class Processed(SamplingRule):
    """Applies logits processors in order, then a sampling rule.

    If the processors leave no token at all, only a stop id is left and the text ends. Without stop
    ids, the logits are then left unchanged.

    Args:
      sampling: `Greedy()` or `Sampling()`. With `Greedy()`, the token is the argmax of the
        processed logits, and verifiers see the processed logits only.
      processors: the result of `in_order`, or your own processors.
    """

    sampling: SamplingRule
    processors: tuple[LogitsProcessor, ...]

    def __post_init__(self):
        object.__setattr__(self, "processors", tuple(self.processors))
        check_is("Processed.sampling", self.sampling, SamplingRule, "Greedy()")
        if isinstance(self.sampling, Processed):
            raise ValueError("Processed.sampling is Processed itself; give all processors to one")
        for processor in self.processors:
            remedy = "processors, such as NoRepeatNGram(3)"
            check_is("Processed.processors", processor, LogitsProcessor, remedy)

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy

    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """Returns the probabilities of logits [B, V] or [B, T, V], each row with its history.

        Raises:
          ValueError: there is no history; a caller without one uses `sampling` itself.
        """
        return standardised(self, logits, positions, history)[1]

    def process(self, logits: Array, history: History) -> Array:
        """Returns the processed logits [B, V] or [B, T, V], with -inf for excluded tokens."""

        def row(logits: Array, tokens: Array, length: Array, begin: Array | None) -> Array:
            text = History(tokens, length, history.stop_ids, begin)
            result = logits
            for processor in self.processors:
                result = processor.process(result, text)
            return jnp.where(jnp.all(result == -jnp.inf), ends(logits, history.stop_ids), result)

        several = history.length.ndim > 1  # one history for each of several next tokens
        of_text = jax.vmap(row, (0, None, 0, None)) if several else row
        return jax.vmap(of_text)(logits, history.tokens, history.length, history.begin)


def with_processors(sampling: SamplingRule, processors: tuple[LogitsProcessor, ...]):
    """Returns the sampling rule with processors in front of it, unchanged if there are none.

    Args:
      sampling: the rule.
      processors: the processors, in their order.

    Returns:
      The sampling rule.
    """
    return Processed(sampling, processors) if processors else sampling


def looks_back(sampling: SamplingRule) -> TypeGuard[Processed]:
    """Returns whether a sampling rule has processors, so that it needs a history.

    Args:
      sampling: the rule.
    """
    return isinstance(sampling, Processed)


def unprocessed(sampling: SamplingRule) -> SamplingRule:
    """Returns the sampling rule without its processors.

    Args:
      sampling: the rule.
    """
    return sampling.sampling if looks_back(sampling) else sampling


def instead(sampling: SamplingRule, other: SamplingRule) -> SamplingRule:
    """Returns another sampling rule with the processors of this one.

    Args:
      sampling: the rule that has the processors.
      other: the rule that follows the processors in the result.
    """
    return dataclasses.replace(sampling, sampling=other) if looks_back(sampling) else other


def standardised(
    sampling: SamplingRule, logits: Array, positions: Array | None, history: History | None
) -> tuple[Array, Array]:
    """Returns the processed logits and their probabilities, both [..., V].

    Args:
      sampling: the rule.
      logits: [..., V] float32.
      positions: [...] int32, the indices of the output tokens.
      history: the text before each token, which processors need.

    Raises:
      ValueError: the rule has processors and there is no history.
    """
    if not looks_back(sampling):
        return logits, sampling.probabilities(logits, positions)
    if history is None:
        raise ValueError(
            f"{sampling} looks back at the text and got no history; give one, or draw with "
            f"{sampling.sampling} (in a drafter this only lowers the acceptance rate)"
        )
    logits = sampling.process(logits, history)
    return logits, sampling.sampling.probabilities(logits, positions)


def before_each(
    fed: Array, stop_ids: tuple[int, ...], prompt: Prompt | None
) -> tuple[Array, History]:
    """Returns the position and the history of the token after each fed token, for a whole text.

    Args:
      fed: [B, T] int32, the tokens that a target is fed, starting with the start token.
      stop_ids: the ids that end a text.
      prompt: the result of `Target.prompt`.
    """
    positions = jnp.broadcast_to(jnp.arange(fed.shape[1]), fed.shape)
    return positions, History(fed, positions + 1, stop_ids).after(prompt)


def check_ids(sampling: SamplingRule, size: int) -> None:
    """Raises ValueError if a processor names an id that the vocabulary lacks.

    Args:
      sampling: the rule, with or without processors.
      size: the number of ids.
    """
    for processor in sampling.processors if looks_back(sampling) else ():
        for token in processor.ids:
            if not 0 <= token < size:
                raise ValueError(
                    f"{type(processor).__name__} names token {token} but the vocabulary has "
                    f"{size}; give ids from 0 to {size - 1}"
                )
