"""Records by kind, and the estimator that both modes share.

It is the sum over texts of the median over repeats: of measured seconds, of seconds predicted from
the parts, or of calls.
"""

from __future__ import annotations

import collections
import operator
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specdec.measure.file import Generation, Record, Timing
from specdec.measure.parts import (
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    READ_BYTES,
    Key,
    by_turns,
    in_iterations,
    step_of,
)
from specdec.predict.costs import Costs


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


class MeasuredParts(NamedTuple):
    """All records of a benchmark."""

    alone: Sequence[Generation]  # generations of the target alone
    speculative: Sequence[Generation]  # generations with speculation
    greedy: Sequence[Generation]  # of a beam search
    elsewhere: Sequence[Generation]  # generations for texts of another split
    seconds: Mapping[Key, float]  # part -> seconds of one model call, or of one prefill; medians
    costs: Costs  # that follow from them
    bandwidth: float  # bytes/s at which memory was read, the best value
    spread: Spread | None  # how much they vary; None if nothing was timed twice

    @classmethod
    def of(cls, records: Iterable[Record]) -> MeasuredParts:
        """Returns the parts of records; raises ValueError if nothing was generated."""
        records = list(records)
        by_mode = collections.defaultdict(list)
        for record in records:
            if isinstance(record, Generation):
                by_mode[record.mode if record.split is None else "elsewhere"].append(record)
        alone, speculative = by_mode["alone"], by_mode["speculative"]
        if not all(any(text.tokens for text in texts) for texts in (alone, speculative)):
            raise ValueError("no token was generated; benchmark texts that are not empty")
        seconds = seconds_per_call(record for record in records if isinstance(record, Timing))
        medians = {part: statistics.median(values) for part, values in seconds.items()}
        bandwidth = READ_BYTES / min(seconds[MEMORY_READ])
        spread, others = Spread.of(records), (by_mode["greedy"], by_mode["elsewhere"])
        return cls(alone, speculative, *others, medians, costs_of(medians), bandwidth, spread)

    @property
    def by_turns(self) -> float:
        """The time of a draft in an iteration, divided by that of its calls timed alone."""
        return by_turns(self.seconds)


def costs_of(seconds: Mapping[Key, float], source: str = "", times: float | None = None) -> Costs:
    """Returns the costs of parts; `times` is `by_turns` if another iteration tells it."""
    calls = in_iterations(seconds, by_turns(seconds) if times is None else times)
    prefills = seconds[PREFILL], seconds[PREFILL_ALONE]
    return Costs(calls, *prefills, seconds[step_of(seconds)], source)


def total(generations: Sequence[Generation], value: Callable[[Generation], float]) -> float:
    """Returns the sum over texts of the median over repeats."""
    return sum(medians(generations, value).values())


def medians(
    generations: Sequence[Generation], value: Callable[[Generation], float]
) -> dict[int, float]:
    """Returns text -> the median over repeats."""
    values = collections.defaultdict(list)
    for generation in generations:
        values[generation.text].append(value(generation))
    return {text: statistics.median(values[text]) for text in sorted(values)}


def drafted(generations: Sequence[Generation]) -> list[int]:
    """Returns the number of drafted tokens of each call."""
    return [length for generation in generations for length in generation.drafted]


def depths(generations: Sequence[Generation]) -> list[int] | None:
    """Returns the target's layers of each call; None if calls run all layers."""
    return [depth for generation in generations for depth in generation.depths] or None


def seconds(generation: Generation) -> float:
    assert generation.seconds is not None, "of a text that is timed"
    return generation.seconds


steps, calls = operator.attrgetter("steps"), operator.attrgetter("calls")


def seconds_per_call(timings: Iterable[Timing]) -> dict[Key, list[float]]:
    """Returns part -> seconds of one model call, or of one prefill, in each timing."""
    seconds = collections.defaultdict(list)
    for timing in timings:
        seconds[timing.part].append(timing.seconds / timing.steps)
    return seconds
