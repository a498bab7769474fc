"""Computes the numbers in the figures of times and draft lengths, in seconds and tokens."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specdec.common.json_values import parsed
from specdec.measure import estimator, file
from specdec.measure.file import Generation
from specdec.report.speedups import predicts, varies, with_prediction
from specdec.report.summaries import Figures, ReportedRun

GROUP = 3  # adjacent token positions whose calls are averaged
NEGATIVE = "the parts alone took longer than the whole, on a busy machine"
FEWEST_CALLS = 10  # the fewest calls in a mean


class CallTokens(NamedTuple):
    """The numbers of tokens of one target call."""

    accepted: int
    own: int  # 1 for the target's token, 0 if the text ended in the draft
    rejected: int


class Timeline(NamedTuple):
    """One text, generated with speculation and by the target alone."""

    name: str  # the run's name
    text: int  # the example's index
    prediction: Figures  # of the run, with the mean seconds of the parts of an iteration
    baseline: Figures  # of the run, with the seconds of the target alone
    calls: Sequence[CallTokens]  # of this text
    tokens: int  # of this text
    seconds: Mapping[str, float]  # mode -> measured seconds of this text

    def start(self, call: int) -> float:
        prefill, *parts = (self.part(x) for x in ("prefill", "draft", "verify", "rest"))
        return prefill + call * sum(parts)

    def part(self, name: str) -> float:
        """Returns the seconds of a part as they are drawn; differences can be negative."""
        return max(0.0, self.prediction[name])


class Lengths(NamedTuple):
    """The draft lengths of a run: of each call for one text, and means over all texts."""

    name: str  # the run's name
    text: int  # the index of the text
    # (position in the output, drafted, accepted, output tokens) of each call for this text
    calls: Sequence[tuple[int, int, int, int]]
    places: Sequence[int]  # positions in the output, for the means
    drafted: Sequence[float]  # mean drafted tokens of calls at each position
    accepted: Sequence[float]  # mean accepted tokens of calls at each position


class Bar(NamedTuple):
    """A bar of the figure of one iteration."""

    name: str
    start: float  # the bar's left end, in target steps
    steps: float  # the bar's length, in target steps
    seconds: float  # the bar's length in seconds

    @property
    def in_words(self) -> str:
        """The length of the bar in words; a negative difference is none."""
        if self.seconds < 0:
            return "none"
        return f"{self.steps:.2f} ({1e3 * self.seconds:.2f} ms)"


def timeline(runs: Sequence[ReportedRun]) -> Timeline:
    """Returns the first run's text of median length and, among equal lengths, median calls."""
    run, bench = with_prediction(runs)[0]
    pairs = _generations(run)
    pairs.sort(key=lambda x: (len(x["speculative"].tokens), x["speculative"].calls))
    both = pairs[len(pairs) // 2]
    speculative = both["speculative"]
    calls = [
        CallTokens(accepted, more - accepted, drafted - accepted)
        for _, drafted, accepted, more in _calls(speculative)
    ]
    return Timeline(
        name=run.name,
        text=speculative.text,
        prediction=bench["prediction"],
        baseline=bench["baseline"],
        calls=calls,
        tokens=len(both["alone"].tokens),
        seconds={mode: estimator.seconds(generation) for mode, generation in both.items()},
    )


def lengths(runs: Sequence[ReportedRun]) -> list[Lengths]:
    """Returns the draft lengths of every run with a drafter, for the same text if possible."""
    every: list[Lengths] = []
    for run in runs:
        if not (predicts(run) or varies(run)):
            continue
        ours = [both["speculative"] for both in _generations(run)]
        same = [x for x in ours if every and x.text == every[0].text]
        shown = max(same or ours, key=lambda generation: len(generation.tokens))
        groups = collections.defaultdict(list)
        for generation in ours:
            for start, drafted, accepted, _ in _calls(generation):
                groups[start // GROUP].append((drafted, accepted))
        large = {group: x for group, x in sorted(groups.items()) if len(x) >= FEWEST_CALLS}
        means = [np.mean(x, axis=0).tolist() for x in large.values()]
        drafts, accepts = zip(*means, strict=True) if means else ((), ())
        places = [group * GROUP for group in large]
        every.append(Lengths(run.name, shown.text, list(_calls(shown)), places, drafts, accepts))
    return every


def _calls(generation: Generation) -> Iterator[tuple[int, int, int, int]]:
    """Yields (position in the output, drafted, accepted, output tokens) of each target call."""
    start = 0
    for drafted, accepted in zip(generation.drafted, generation.accepted, strict=True):
        longer = min(accepted + 1, len(generation.tokens) - start)
        yield start, drafted, accepted, longer
        start += longer


def waterfalls(runs: Sequence[ReportedRun]) -> dict[str, list[Bar]]:
    """Returns run's name -> bars of draft, verify and rest, in a row, and of the target alone.

    The last bar is the time of the target alone for the tokens of an iteration."""
    bars = {}
    for run, bench in with_prediction(runs):
        step, parts, start = bench["baseline"]["target_step"], [], 0.0
        for name in ("draft", "verify", "rest"):
            seconds = bench["prediction"][name]
            parts.append(Bar(name, start, seconds / step, seconds))
            start += max(0.0, seconds) / step  # a busy machine makes differences negative
        tau = bench["tau"]
        bars[run.name] = [*parts, Bar("target alone", 0.0, tau, tau * step)]
    return bars


def _generations(run: ReportedRun) -> list[dict[str, Generation]]:
    """Returns, for each text and repeat in the JSON lines, mode -> generation."""
    assert run.lines is not None
    pairs: dict[tuple[int, int | None], dict[str, Generation]] = collections.defaultdict(dict)
    try:
        for line in run.lines.read_text(encoding="utf-8").splitlines():
            record = file.record(parsed(line))
            if isinstance(record, Generation) and record.seconds is not None:
                pairs[record.text, record.repeat][record.mode] = record
    except OSError as error:
        raise ValueError(
            f"{run.lines} cannot be read: {error.strerror}; the timeline needs the lines that "
            "specdec bench wrote next to the summary"
        ) from error
    except (TypeError, ValueError):
        pairs.clear()
    if not pairs or any(len(both) < 2 for both in pairs.values()):
        raise ValueError(f"{run.lines} does not have the lines of the specdec bench of its summary")
    return list(pairs.values())
