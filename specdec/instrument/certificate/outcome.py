"""The outcome of a check, and the comparison of texts that most checks make."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from specdec.common.json_values import JsonObject, record_of
from specdec.instrument.certificate.subject import Subject
from specdec.sampling import Sampling, unprocessed
from specdec.types import Array, DecodeOutput, SamplingRule

_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
      figures: the measured values, by name.
      demands: the condition of passing, by the figure's name: ('<=', '>=' or '==', threshold).
      note: both in one line.
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

    @classmethod
    def of(cls, record: JsonObject) -> Check:
        """Returns the check of a record."""
        return record_of(cls, {name: x for name, x in record.items() if name != "passed"})

    def record(self) -> Mapping[str, object]:
        """Returns plain values, for JSON."""
        return dataclasses.asdict(self) | {"passed": self.passed}

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'} {self.name:<8} {self.note}"


def timed(
    checks: Mapping[str, Callable[[], Check]],
    clock: Callable[[], float],
    started: Callable[[str], None],
    known: Mapping[str, Check],
) -> Iterator[Check]:
    """Runs checks and yields the outcomes with their seconds.

    Args:
      checks: the checks by name.
      clock: returns seconds.
      started: is called with the name of each check before it runs.
      known: outcomes by name, of checks that are not run again.
    """
    for name, check in checks.items():
        if name in known:
            yield known[name]
            continue
        started(name)
        start = clock()
        result = check()
        yield dataclasses.replace(result, seconds=round(clock() - start, 3))


def agreement(name: str, subject: Subject, sampling: SamplingRule, output: DecodeOutput) -> Check:
    """Compares outputs with those of the target alone; a difference is a near-tie or a mistake.

    In bfloat16, a call of another width rounds differently. If the schedule has only one width,
    outputs must therefore also equal those of the target alone in calls of that width. With
    `Plan.same_bits` all outputs must be identical.
    """
    rows = len(output.tokens)
    plain = subject.plain(sampling).tokens[:rows]
    differ = np.flatnonzero((output.tokens != plain).any(axis=1))
    gap = _largest_gap(subject, sampling, output.tokens, plain, differ)
    # log p has the logits' error over the temperature.
    own = unprocessed(sampling)
    temperature = own.temperature if isinstance(own, Sampling) else 1.0
    limit = subject.tolerance / min(1.0, temperature)
    note = f"{rows - len(differ)} of {rows} outputs identical to the target alone"
    if len(differ):
        note += f", the others part at a gap of at most {gap:.1e} nats"
    check = Check(
        name,
        {"texts": rows, "identical": rows - len(differ), "largest_gap": gap},
        {"largest_gap": ("<=", limit)},
        f"{note} (threshold {limit:.2g} nats)",
    )
    if subject.plan.same_bits:
        return dataclasses.replace(check, demands=check.demands | {"identical": ("==", rows)})
    if subject.float32 or subject.plan.width is None:
        return check
    return _at_same_width(check, subject, sampling, output)


def _largest_gap(
    subject: Subject, sampling: SamplingRule, ours: Array, plain: Array, rows: np.ndarray
) -> float:
    gaps = np.array([subject.gap(int(r), ours[r], plain[r], sampling) for r in rows], np.float64)
    if not subject.float32:
        # An infinite gap: coarse rounding put the token on the other side of top-k or top-p.
        gaps = gaps[~np.isinf(gaps)]
    return float(np.max(gaps, initial=0))


def _at_same_width(
    check: Check, subject: Subject, sampling: SamplingRule, output: DecodeOutput
) -> Check:
    """Returns the check with one more demand: the target's texts from calls of equal width."""
    rows = len(output.tokens)
    wide = subject.plain(sampling, subject.plan.width or 1).tokens[:rows]
    same = int((output.tokens == wide).all(axis=1).sum())
    return dataclasses.replace(
        check,
        figures=check.figures | {"identical_at_same_width": same},
        demands=check.demands | {"identical_at_same_width": ("==", rows)},
        note=f"{check.note}; {same} of {rows} to the target alone in calls of the same width (all "
        "must be)",
    )
