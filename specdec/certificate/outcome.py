"""The outcome of a check, and the comparison of texts that most checks make."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from specdec.certificate.subject import Subject
from specdec.common import progress
from specdec.common.json_values import JsonObject, converted
from specdec.sampling import Sampling, unprocessed
from specdec.testing.excess import DETECTED
from specdec.types import Array, DecodeOutput, SamplingRule

_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


WANTED_TEXTS = 0.15  # the share of texts that a fault may change undetected
_MOST_TEXTS = 10**6


@dataclasses.dataclass(frozen=True)
class Power:
    """The smallest deviation that a check would have shown with probability 0.99.

    Attributes:
      deviation: the deviation, as a share.
      wanted: the largest deviation that still certifies.
      texts: the number of texts that would show the wanted deviation.
      what: a format string that describes a deviation of a given size.
    """

    deviation: float
    wanted: float
    texts: int
    what: str

    @property
    def enough(self) -> bool:
        return self.deviation <= self.wanted

    @property
    def seen(self) -> str:
        """The deviation in words."""
        return self.what.format(self.deviation)

    @property
    def missed(self) -> str:
        """The wanted deviation in words."""
        return self.what.format(self.wanted)

    @classmethod
    def by(
        cls, detectable: Callable[[np.ndarray], np.ndarray], texts: int, wanted: float, what: str
    ) -> Power:
        """Returns the power of a check.

        Args:
          detectable: returns the deviations that are seen with multiples [M] of the texts.
          texts: the number of texts.
          wanted: the largest deviation that certifies.
          what: a format string that describes a deviation.
        """
        counts = np.unique(np.geomspace(1, _MOST_TEXTS, 4000).astype(int))
        enough = counts[detectable(counts / max(texts, 1)) <= wanted]
        deviation = float(np.minimum(detectable(np.ones(1)), 1)[0])
        needed = int(enough[0]) if len(enough) else _MOST_TEXTS
        return cls(deviation, wanted, needed, what)

    @classmethod
    def of_cases(
        cls, cases: int, texts: int, wanted: float, what: str, allowed: float = 0.0
    ) -> Power:
        """Returns the power of a check that fails if more than a few of its cases fail.

        Let each of n cases fail with probability r. By Poisson's distribution, the deviation is the
        r at which more than the allowed number fail with probability 0.99.

        Args:
          cases: n.
          texts: the number of texts from which the cases come.
          wanted: the largest r that certifies.
          what: a format string that describes r.
          allowed: the share of cases that may fail, at least one case; 0 allows none.
        """

        def detectable(times: np.ndarray) -> np.ndarray:
            count = np.maximum(cases * times, 1e-9)
            if not allowed:
                return 1 - (1 - DETECTED) ** (1 / count)
            from scipy import special  # a second to import

            may_fail = np.maximum(1, np.floor(allowed * count))
            return special.gammaincinv(may_fail + 1, DETECTED) / count

        return cls.by(detectable, texts, wanted, what)

    @classmethod
    def of_texts(cls, texts: int) -> Power:
        """Returns the power of a check that fails if a single text fails."""
        return cls.of_cases(texts, texts, WANTED_TEXTS, "a fault in {:.0%} of the texts")


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
      figures: the measured values, by name.
      demands: the condition of passing, by the figure's name: ('<=', '>=' or '==', threshold).
      note: figures and demands in one line.
      power: the deviation that the check would have shown; None if texts do not matter.
    """

    name: str
    figures: dict[str, Any]
    demands: dict[str, tuple[str, float]]
    note: str
    seconds: float = 0.0
    power: Power | None = None

    @property
    def passed(self) -> bool:
        demands = self.demands.items()
        return all(_HOLDS[sign](self.figures[name], limit) for name, (sign, limit) in demands)

    @classmethod
    def of(cls, record: JsonObject) -> Check:
        """Returns the check with the fields of a JSON record."""
        return converted(record, cls)

    def record(self) -> Mapping[str, object]:
        """Returns plain values, for JSON."""
        return dataclasses.asdict(self) | {"passed": self.passed}

    def __str__(self) -> str:
        seen = f"; shows {self.power.seen}" if self.power else ""
        return f"{'PASS' if self.passed else 'FAIL'} {self.name:<8} {self.note}{seen}"


def timed(
    checks: Mapping[str, Callable[[], Check]],
    clock: Callable[[], float],
    started: Callable[[str], None],
    known: Mapping[str, Check],
    decisive: Collection[str] = (),
) -> Iterator[Check]:
    """Runs and times checks, except `known` ones, up to a `decisive` check that fails."""
    for number, (name, check) in enumerate(checks.items(), start=1):
        if name in known:
            yield known[name]
            continue
        started(name)
        start = clock()
        with progress.stage("checking", f"checking {name}, {number} of {len(checks)}"):
            result = check()
        yield dataclasses.replace(result, seconds=round(clock() - start, 3))
        if name in decisive and not result.passed:
            return


def agreement(name: str, subject: Subject, sampling: SamplingRule, output: DecodeOutput) -> Check:
    """Compares outputs with those of the target alone; a difference is a near-tie or a mistake."""
    # In bfloat16, a call of another width rounds differently. If the schedule has only one width,
    # outputs must therefore equal those of the target alone in calls of that width.
    rows = len(output.tokens)
    plain = subject.plain(sampling).tokens[:rows]
    differ = np.flatnonzero((output.tokens != plain).any(axis=1))
    gap = _largest_gap(subject, sampling, output.tokens, plain, differ)
    # log p has the logits' error over the temperature.
    rule = unprocessed(sampling)
    temperature = rule.temperature if isinstance(rule, Sampling) else 1.0
    limit = subject.tolerance / min(1.0, temperature)
    note = f"{rows - len(differ)} of {rows} outputs identical to the target alone"
    if len(differ):
        note += f", the others part at a gap of at most {gap:.1e} nats"
    check = Check(
        name,
        {"texts": rows, "identical": rows - len(differ), "largest_gap": gap},
        {"largest_gap": ("<=", limit)},
        f"{note} (threshold {limit:.2g} nats)",
        power=Power.of_texts(rows),
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
