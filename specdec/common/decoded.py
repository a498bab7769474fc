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
      drafted: Of each target call, how many tokens had been drafted; 0 where there is no drafter.
      accepted: Of each target call, how many of the drafted tokens were kept.
      sources: Of each target call, which of the drafter's parts made the draft, from 0; absent
        where the drafter is not made of others.
      depths: Of each target call, how many layers it went through; absent where calls go through
        all.
      broken_drafts: How many drafts ended early because the drafter's probabilities were not a
        distribution; absent if none did.
      calls: Target calls that the output took.
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
        """Adds this text, whose first `prefix` tokens were given, to the figures of a run."""
        summary.texts += 1
        summary.tokens += len(self.tokens) - prefix
        summary.drafted += self.drafted
        summary.accepted += self.accepted
        summary.layers += self.depths
        summary.broken_drafts += self.broken_drafts
