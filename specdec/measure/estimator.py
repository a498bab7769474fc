"""Sums of a benchmark's records: every figure is a sum over texts of the median over repeats.

The same rule is used for measured seconds, for seconds predicted from the parts, and for counts.
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
    """The spread of repeated timings of the same work, each divided by the median of that work."""

    low: float  # the 10 % quantile over all timings
    high: float  # the 90 % quantile
    timings: int  # the number of timings; work that was timed only once is left out

    @classmethod
    def of(cls, records: Iterable[Record]) -> Spread | None:
        """Returns the spread of a benchmark's timings; None if nothing was timed twice."""
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
    """All records of a benchmark by mode, and the costs of the timed parts."""

    alone: Sequence[Generation]  # generations of the target alone
    speculative: Sequence[Generation]  # generations with speculation
    greedy: Sequence[Generation]  # greedy generations with speculation; empty without beams
    elsewhere: Sequence[Generation]  # untimed generations for texts of another split
    seconds: Mapping[Key, float]  # part -> median seconds of one model call, or of one prefill
    costs: Costs  # computed from `seconds`
    bandwidth: float  # bytes/s at which memory was read, the best value
    spread: Spread | None  # how much timings vary; None if nothing was timed twice

    @classmethod
    def of(cls, records: Iterable[Record]) -> MeasuredParts:
        """Sorts records by mode; raises ValueError if no token was generated."""
        records = list(records)
        by_mode = collections.defaultdict(list)
        for record in records:
            if isinstance(record, Generation):
                by_mode[record.mode if record.split is None else "elsewhere"].append(record)
        alone, speculative = by_mode["alone"], by_mode["speculative"]
        if not all(any(text.tokens for text in texts) for texts in (alone, speculative)):
            raise ValueError("no token was generated; benchmark inputs with non-empty outputs")
        seconds = seconds_per_call(record for record in records if isinstance(record, Timing))
        medians = {part: statistics.median(values) for part, values in seconds.items()}
        bandwidth = READ_BYTES / min(seconds[MEMORY_READ])
        spread, others = Spread.of(records), (by_mode["greedy"], by_mode["elsewhere"])
        return cls(alone, speculative, *others, medians, costs_of(medians), bandwidth, spread)

    @property
    def by_turns(self) -> float:
        """Seconds of a draft between target calls / seconds of its calls timed alone."""
        return by_turns(self.seconds)


def costs_of(seconds: Mapping[Key, float], source: str = "", times: float | None = None) -> Costs:
    """Returns the costs of parts; `times` multiplies the draft's, by default by `by_turns`."""
    calls = in_iterations(seconds, by_turns(seconds) if times is None else times)
    prefills = seconds[PREFILL], seconds[PREFILL_ALONE]
    return Costs(calls, *prefills, seconds[step_of(seconds)], source)


def total(generations: Sequence[Generation], value: Callable[[Generation], float]) -> float:
    """Returns the sum over texts of the median over repeats of `value(generation)`."""
    return sum(medians(generations, value).values())


def medians(
    generations: Sequence[Generation], value: Callable[[Generation], float]
) -> dict[int, float]:
    """Returns text index -> the median over repeats of `value(generation)`."""
    values = collections.defaultdict(list)
    for generation in generations:
        values[generation.text].append(value(generation))
    return {text: statistics.median(values[text]) for text in sorted(values)}


def drafted(generations: Sequence[Generation]) -> list[int]:
    """Returns the number of drafted tokens of each target call, over all generations."""
    return [length for generation in generations for length in generation.drafted]


def depths(generations: Sequence[Generation]) -> list[int] | None:
    """Returns the number of layers that each target call ran; None if all calls run all layers."""
    return [depth for generation in generations for depth in generation.depths] or None


def seconds(generation: Generation) -> float:
    assert generation.seconds is not None, "the generation was not timed"
    return generation.seconds


steps, calls = operator.attrgetter("steps"), operator.attrgetter("calls")


def seconds_per_call(timings: Iterable[Timing]) -> dict[Key, list[float]]:
    """Returns part -> a list over its timings of the seconds of one model call or prefill."""
    seconds = collections.defaultdict(list)
    for timing in timings:
        seconds[timing.part].append(timing.seconds / timing.steps)
    return seconds
