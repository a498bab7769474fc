"""The record of a decoded text, and the figures of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Self

from specdec.common.theory import block_efficiency, empirical_alpha
from specdec.types import DecodeOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedText:
    """A text and how it came about, as plain values.

    tokens: ids, with the stop id that ends them.
    proposed: the ids that were drafted for each target call, where they are kept.
    drafted: how many tokens were drafted for each target call.
    accepted: how many of these the call kept.
    sources: which drafter proposed, call by call; empty where the drafter has but one.
    depths: the target's layers, call by call; empty where calls go through all.
    broken_drafts: how many drafts ended early, see `Trace`.
    """

    tokens: Sequence[int]
    drafted: Sequence[int]
    accepted: Sequence[int]
    proposed: Sequence[Sequence[int]] = ()
    sources: Sequence[int] = ()
    depths: Sequence[int] = ()
    broken_drafts: int = 0

    @classmethod
    def of(cls, output: DecodeOutput, row: int, **others: Any) -> Self:
        """Returns the record of one row of an output that is on the host.

        others: the fields that a subclass adds.
        """
        return cls(
            **output.row(row)._asdict(),
            broken_drafts=int(output.trace.broken_drafts[row]),
            **others,
        )

    @property
    def calls(self) -> int:
        """Returns the number of target calls."""
        return len(self.drafted)

    @property
    def tokens_per_call(self) -> float:
        """Returns nan if no call was made."""
        return block_efficiency(len(self.tokens), self.calls)

    @property
    def alpha(self) -> float:
        """Returns accepted drafts over tested ones; nan if nothing was drafted."""
        return empirical_alpha(self.accepted, self.drafted)


@dataclasses.dataclass
class Summary:
    """The figures of a run so far."""

    texts: int = 0
    tokens: int = 0  # emitted, EOS included, without prefixes
    drafted: list[int] = dataclasses.field(default_factory=list)  # one entry per target call
    accepted: list[int] = dataclasses.field(default_factory=list)
    layers: list[int] = dataclasses.field(default_factory=list)  # of a target that tokens may leave
    seconds: float = 0.0  # decoding
    compile_seconds: float = 0.0
    broken_drafts: int = 0  # that the loop ended early, see `Trace`
    identical: int = 0  # texts with the baseline's tokens, if it ran
    exact: bool = True  # whether they have the target's law
    baseline_calls: int = 0
    baseline_seconds: float = 0.0

    def add(self, text: DecodedText, given: int = 0) -> None:
        """Adds one text, of which `given` tokens were a prefix."""
        self.texts += 1
        self.tokens += len(text.tokens) - given
        self.drafted += text.drafted
        self.accepted += text.accepted
        self.layers += text.depths
        self.broken_drafts += text.broken_drafts

    def lines(self) -> list[str]:
        """The closing lines; the baseline's only if it ran."""
        calls = len(self.drafted)
        if not calls:
            return [f"{self.texts} texts"]
        drafted = any(self.drafted)
        lines = [
            f"{self.texts} texts, {self.tokens} tokens, {calls} target calls: "
            f"{block_efficiency(self.tokens, calls):.2f} tokens per call"
            + (f", alpha {empirical_alpha(self.accepted, self.drafted):.3f}" if drafted else "")
            + (f", {fmean(self.layers):.2f} layers of the target a call" if self.layers else ""),
            f"{self.seconds:.1f} s decoding, {self.compile_seconds:.1f} s compiling",
        ]
        if self.broken_drafts:
            lines.append(
                f"{self.broken_drafts} of {calls} drafts ended early, because the drafter's "
                "probabilities were not a distribution (NaN, infinite, negative or of a wrong "
                "sum); check its checkpoint"
            )
        if self.baseline_calls:
            lines.append(
                f"the target alone: {self.baseline_calls} calls, {self.baseline_seconds:.1f} s; "
                f"{self.baseline_seconds / self.seconds:.2f} times the time"
            )
            same = "identical outputs" if self.exact else "NOT EXACT; the same by chance"
            lines.append(f"{same}: {self.identical} of {self.texts}")
        return lines
