"""The record of a decoded text, which all code that counts tokens and calls shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from specdec.common.terminal import Summary
from specdec.common.theory import block_efficiency, empirical_alpha
from specdec.types import DecodeOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedText:
    """A text and the target calls that made it, as plain values."""

    tokens: Sequence[int]  # ids, including the stop id that ends them
    drafted: Sequence[int]  # how many tokens were drafted for each target call
    accepted: Sequence[int]  # how many of these the call kept
    # the ids that were drafted for each target call, if they are stored
    proposed: Sequence[Sequence[int]] = ()
    sources: Sequence[int] = ()  # the index of the drafter of each call; empty if there is only one
    # the target's layers in each call; empty if all calls run all layers
    depths: Sequence[int] = ()
    broken_drafts: int = 0  # how many drafts ended early, see `Trace`

    @classmethod
    def of(cls, output: DecodeOutput, row: int, **others: Any) -> Self:
        """Returns the record of one row of an output that is on the host."""
        return cls(
            **output.row(row)._asdict(),
            broken_drafts=int(output.trace.broken_drafts[row]),
            **others,
        )

    @property
    def calls(self) -> int:
        """The number of target calls."""
        return len(self.drafted)

    @property
    def tokens_per_call(self) -> float:
        """The number of tokens per target call; nan if no call was made."""
        return block_efficiency(len(self.tokens), self.calls)

    @property
    def alpha(self) -> float:
        """The accepted draft tokens over the tested ones; nan if no token was drafted."""
        return empirical_alpha(self.accepted, self.drafted)

    def count_in(self, summary: Summary, given: int = 0) -> None:
        """Adds this text, of which `given` tokens were a prefix, to the figures of a run."""
        summary.texts += 1
        summary.tokens += len(self.tokens) - given
        summary.drafted += self.drafted
        summary.accepted += self.accepted
        summary.layers += self.depths
        summary.broken_drafts += self.broken_drafts
