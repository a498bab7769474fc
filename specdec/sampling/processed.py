"""Processors before a sampling rule, and what every path does with both."""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

import jax
import jax.numpy as jnp

from specdec.common.values import check_is
from specdec.sampling.processors import ends
from specdec.types import Array, History, LogitsProcessor, SamplingRule


@dataclasses.dataclass(frozen=True)
class Processed(SamplingRule):
    """`sampling` behind processors, which change the logits in their order.

    sampling: `Greedy()` or `Sampling()`. Around `Greedy()` it is greedy: the argmax of the logits
      that they leave is taken, and verifiers see no others.
    processors: what `in_order` makes, or any of one's own.

    Where they leave no token at all, the text ends: a stop id is all that is left. (Without stop
    ids the logits are then as they were.)
    """

    sampling: SamplingRule
    processors: tuple[LogitsProcessor, ...]

    def __post_init__(self):
        object.__setattr__(self, "processors", tuple(self.processors))
        check_is("Processed.sampling", self.sampling, SamplingRule, "Greedy()")
        if isinstance(self.sampling, Processed):
            raise ValueError("Processed.sampling is Processed itself; give all processors to one")
        for one in self.processors:
            remedy = "processors, such as NoRepeatNGram(3)"
            check_is("Processed.processors", one, LogitsProcessor, remedy)

    @property
    def greedy(self) -> bool:
        return self.sampling.greedy

    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """[B, V] or [B, T, V] logits -> as many probabilities, each row given its history.

        Raises:
          ValueError: there is no history. Who cannot give one draws with `sampling` itself.
        """
        return standardised(self, logits, positions, history)[1]

    def process(self, logits: Array, history: History) -> Array:
        """[B, V] or [B, T, V] logits as the processors leave them, -inf for what they exclude."""

        def row(logits: Array, tokens: Array, length: Array) -> Array:
            text = History(tokens, length, history.stop_ids)
            left = logits
            for one in self.processors:
                left = one.process(left, text)
            return jnp.where(jnp.all(left == -jnp.inf), ends(logits, history.stop_ids), left)

        several = history.length.ndim > 1  # one history for each of several next tokens
        of_text = jax.vmap(row, (0, None, 0)) if several else row
        return jax.vmap(of_text)(logits, history.tokens, history.length)


def with_processors(sampling: SamplingRule, processors: tuple[LogitsProcessor, ...]):
    """The sampling behind processors, itself if there are none."""
    return Processed(sampling, processors) if processors else sampling


def looks_back(sampling: SamplingRule) -> TypeGuard[Processed]:
    """Whether its probabilities need a history."""
    return isinstance(sampling, Processed)


def unprocessed(sampling: SamplingRule) -> SamplingRule:
    """The sampling without its processors."""
    return sampling.sampling if looks_back(sampling) else sampling


def instead(sampling: SamplingRule, other: SamplingRule) -> SamplingRule:
    """Another sampling behind the same processors."""
    return dataclasses.replace(sampling, sampling=other) if looks_back(sampling) else other


def standardised(
    sampling: SamplingRule, logits: Array, positions: Array | None, history: History | None
) -> tuple[Array, Array]:
    """The logits as processors leave them, and the probabilities [..., V] that they stand for."""
    if not looks_back(sampling):
        return logits, sampling.probabilities(logits, positions)
    if history is None:
        raise ValueError(
            f"{sampling} looks back at the text and got no history; give one, or draw with "
            f"{sampling.sampling} (a drafter may: it costs acceptance)"
        )
    logits = sampling.process(logits, history)
    return logits, sampling.sampling.probabilities(logits, positions)


def before_each(fed: Array, stop_ids: tuple[int, ...]) -> tuple[Array, History]:
    """Position and history of what comes behind each of the tokens [B, T] that a target is fed, the
    start token first: of a whole text at once."""
    positions = jnp.broadcast_to(jnp.arange(fed.shape[1]), fed.shape)
    return positions, History(fed, positions + 1, stop_ids)


def check_ids(sampling: SamplingRule, size: int) -> None:
    """Raises ValueError for a processor about an id that a vocabulary of this size lacks."""
    for one in sampling.processors if looks_back(sampling) else ():
        for token in one.ids:
            if not 0 <= token < size:
                raise ValueError(
                    f"{type(one).__name__} names token {token} but the vocabulary has {size}; give "
                    f"ids from 0 to {size - 1}"
                )
