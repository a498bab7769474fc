"""The numbers that the figures of times show, in seconds."""

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

GROUP = 3  # places in a text whose calls have one mean
NEGATIVE = "the parts alone took longer than the whole, on a busy machine"
FEWEST_CALLS = 10  # of a mean


class CallTokens(NamedTuple):
    """The tokens of one target call: `own` is the target's, 0 if the text ended in the draft."""

    accepted: int
    own: int
    rejected: int


class Timeline(NamedTuple):
    """One generation, in both modes. Durations are the run's; calls and seconds are this text's."""

    name: str
    text: int
    prediction: Figures  # of the run's benchmark, as its baseline
    baseline: Figures
    calls: Sequence[CallTokens]
    tokens: int
    seconds: Mapping[str, float]  # measured, by mode

    def start(self, call: int) -> float:
        prefill, *parts = (self.part(x) for x in ("prefill", "draft", "verify", "rest"))
        return prefill + call * sum(parts)

    def part(self, name: str) -> float:
        """Returns the seconds of a part as they are drawn; differences can be negative."""
        return max(0.0, self.prediction[name])


class Lengths(NamedTuple):
    """The draft lengths of a run: of one text's calls, and means over all texts by place."""

    name: str
    text: int  # the longest text
    # start, drafted, accepted, and by how many tokens the call lengthened the text
    calls: Sequence[tuple[int, int, int, int]]
    places: Sequence[int]  # of the means
    drafted: Sequence[float]  # means
    accepted: Sequence[float]  # means


class Bar(NamedTuple):
    """A bar of a waterfall, in target steps; the last is the target alone for the same tokens."""

    name: str
    start: float
    steps: float
    seconds: float

    @property
    def in_words(self) -> str:
        """The length of the bar in words; a negative difference is none."""
        if self.seconds < 0:
            return "none"
        return f"{self.steps:.2f} ({1e3 * self.seconds:.2f} ms)"


def timeline(runs: Sequence[ReportedRun]) -> Timeline:
    """Returns the first run's generation of median length, and of median calls among those."""
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
    """Returns the draft lengths of every run with a drafter, of the same text if they have it."""
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
    """Yields the calls in the form of `Lengths.calls`."""
    start = 0
    for drafted, accepted in zip(generation.drafted, generation.accepted, strict=True):
        longer = min(accepted + 1, len(generation.tokens) - start)
        yield start, drafted, accepted, longer
        start += longer


def waterfalls(runs: Sequence[ReportedRun]) -> dict[str, list[Bar]]:
    """Returns run -> the parts of an iteration, each starting where the one before ends."""
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
        raise ValueError(f"{run.lines} is not what specdec bench wrote next to the summary")
    return list(pairs.values())
