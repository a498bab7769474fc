"""A judgement of how far the timings of a benchmark can be trusted."""

from __future__ import annotations

import collections
import os
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from specdec.common.terminal import counted
from specdec.measure.file import Record, Timing

BUSY = 0.5  # load average of a core, before the measurement
NOISY, USELESS = 1.25, 2.0  # the ends of a `Spread`, one over the other


class Spread(NamedTuple):
    """The variation of the times of the same work, as multiples of its median."""

    low: float  # the lower end of the middle 80 % of all timings
    high: float  # the upper end
    timings: int  # the number of timings of work that was timed more than once

    @classmethod
    def of(cls, records: Iterable[Record]) -> Spread | None:
        """Returns the spread of repeated timings; None if nothing was timed twice."""
        times: dict[Hashable, list[float]] = collections.defaultdict(list)
        for record in records:
            if isinstance(record, Timing):
                times[record.part].append(record.seconds / record.steps)
            elif record.seconds is not None:
                times[record.mode, record.text, record.calls].append(record.seconds)
        repeated = [np.divide(x, np.median(x)) for x in times.values() if len(x) > 1]
        if not repeated:
            return None
        pooled = np.concatenate(repeated)
        low, high = np.quantile(pooled, [0.1, 0.9])
        return cls(float(low), float(high), len(pooled))


def lines(
    load: float | None, spread: Spread | None, cores: int = os.cpu_count() or 1
) -> Iterator[str]:
    """Yields how busy the machine was, and what that means for the figures."""
    crowded = load is not None and load > BUSY * cores
    ratio = spread.high / spread.low if spread else 1.0
    busy = crowded or ratio > NOISY
    facts = [] if load is None else [f"load average {load:.1f} on {counted(cores, 'core')} before"]
    if spread:
        facts.append(
            f"the same work took {spread.low:.2f} to {spread.high:.2f} times its median (middle "
            f"80 % of {spread.timings} timings)"
        )
    else:
        facts.append("nothing was timed twice")
    yield f"{'machine is busy' if busy else 'machine':20}{', '.join(facts)}"
    if ratio > USELESS:
        meaning = "trust no figure here, the speed-up included; measure again on an idle machine"
    elif busy:
        meaning = "runs alternate, so the interval of the speed-up holds; no other time is reliable"
    elif not spread:
        meaning = "how much times vary is not known; give more texts or repeats"
    else:
        return
    yield f"{'':20}{meaning}"
