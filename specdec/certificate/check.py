"""What a check says, and the comparison of texts that most checks make."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import numpy as np

from specdec.certificate.subject import Subject
from specdec.types import DecodeOutput, SamplingRule

_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of one check.

    figures: what was measured, by name.
    demands: what passing takes, by the figure's name: ('<=', '>=' or '==', threshold).
    note: both in a line.
    """

    name: str
    figures: dict[str, Any]
    demands: dict[str, tuple[str, float]]
    note: str
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        demands = self.demands.items()
        return all(_HOLDS[sign](self.figures[name], limit) for name, (sign, limit) in demands)

    def record(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self) | {"passed": self.passed}

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'} {self.name:<8} {self.note}"


def agreement(name: str, subject: Subject, sampling: SamplingRule, output: DecodeOutput) -> Check:
    """Outputs against those of the target alone; differences are near-ties, or a mistake.

    In bfloat16 a call of another width rounds differently, so there the outputs must also equal
    those of the target alone in calls of the same width, if the schedule has one width only.
    """
    rows = len(output.tokens)
    plain = subject.plain(sampling).tokens[:rows]
    differ = np.flatnonzero((output.tokens != plain).any(axis=1))
    gaps = np.array(
        [subject.gap(int(r), output.tokens[r], plain[r], sampling) for r in differ], np.float64
    )
    if not subject.exact:
        # An infinite gap: coarse rounding put the token on the other side of top-k or top-p.
        gaps = gaps[~np.isinf(gaps)]
    # log p has the logits' error over the temperature.
    limit = subject.tolerance / min(1.0, getattr(sampling, "temperature", 1.0))
    figures: dict[str, Any] = {
        "texts": rows,
        "identical": rows - len(differ),
        "largest_gap": float(np.max(gaps, initial=0)),
    }
    demands: dict[str, tuple[str, float]] = {"largest_gap": ("<=", limit)}
    note = f"{rows - len(differ)} of {rows} outputs identical to the target alone"
    if len(differ):
        note += f", the others part at a gap of at most {figures['largest_gap']:.1e} nats"
    note += f" (threshold {limit:.2g} nats)"
    if not subject.exact and subject.width is not None:
        wide = subject.plain(sampling, subject.width).tokens[:rows]
        same = int((output.tokens == wide).all(axis=1).sum())
        figures["identical_at_same_width"] = same
        demands["identical_at_same_width"] = ("==", rows)
        note += f"; {same} of {rows} to the target alone in calls of the same width (all must be)"
    return Check(name, figures, demands, note)
