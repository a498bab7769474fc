"""The record of a decoded text, which all code that counts tokens and calls shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Self

from specdec.common.schemas import Count, OneOrMore
from specdec.common.terminal import Summary
from specdec.common.theory import block_efficiency, empirical_alpha
from specdec.types import DecodeOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedText:
    """A text and the target calls that made it, as plain values.

    Attributes:
      tokens: The output's token ids, with its EOS unless the output was cut at the longest length,
        and with the prefix if one was given.
      drafted: The number of tokens drafted for each target call; 0 without a drafter.
      accepted: The number of drafted tokens that each target call accepted.
      sources: For each target call, which inner drafter made the draft, from 0; absent unless the
        drafter combines several.
      depths: The number of layers that each target call ran; absent if every call runs all layers.
      broken_drafts: The number of drafts that ended early because the drafter's probabilities were
        not a distribution; absent if there are none.
      calls: The number of target calls for this text.
    """

    tokens: Sequence[Count]
    drafted: Sequence[Count]
    accepted: Sequence[Count]
    # the ids that were drafted for each target call, if they are stored
    proposed: Sequence[Sequence[int]] = ()
    sources: Sequence[Count] = ()
    depths: Sequence[OneOrMore] = ()
    broken_drafts: Annotated[int, OneOrMore] = 0

    @classmethod
    def of(cls, output: DecodeOutput, row: int, **others: Any) -> Self:
        """Returns the record of one row of an output that is on the host."""
        return cls(
            **output.row(row)._asdict(),
            broken_drafts=int(output.trace.broken_drafts[row]),
            **others,
        )

    @property
    def calls(self) -> Count:
        return len(self.drafted)

    @property
    def tokens_per_call(self) -> float:
        """The number of tokens per target call; nan if no call was made."""
        return block_efficiency(len(self.tokens), self.calls)

    @property
    def alpha(self) -> float:
        """The accepted draft tokens over the tested ones; nan if no token was drafted."""
        return empirical_alpha(self.accepted, self.drafted)

    def count_in(self, summary: Summary, prefix: int = 0) -> None:
        """Adds this text without its given `prefix` tokens to the figures of a run."""
        summary.texts += 1
        summary.tokens += len(self.tokens) - prefix
        summary.drafted += self.drafted
        summary.accepted += self.accepted
        summary.layers += self.depths
        summary.broken_drafts += self.broken_drafts
