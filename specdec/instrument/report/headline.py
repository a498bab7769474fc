"""The short table: what each benchmark measured, and what was predicted."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from specdec.instrument.report.summaries import Figures, ReportedRun, conditions, in_words
from specdec.instrument.report.tables import table

SPEEDUP = "speed-up (95 %)"
HEADER = (
    "run",
    "how",
    "gamma",
    SPEEDUP,
    "predicted by others",
    "measured / that, per token",
    "measured / predicted",
    "tokens per call",
    "alpha",
    "identical",
)
LEGEND = (
    "Speed-up of whole texts, prefill included, over the target alone, by turns in one process. "
    "Predicted by others is what follows from the parts' costs and the tokens per call of another "
    "split; the ratio to it is per token, since texts that are drawn differ in length. Measured / "
    "predicted takes the calls of these texts. In brackets: 95 % intervals over texts."
)


def headline(runs: Sequence[ReportedRun]) -> str:
    """A line for each benchmark, and where they were measured."""
    benches = [(run.name, run.bench) for run in runs if run.bench]
    if not benches:
        raise ValueError("none of the summaries is of specdec bench; a headline is of speed-ups")
    where = "\n".join(f"- {line}" for line in places(runs))
    rows = [tuple(row(name, bench, strong="**")) for name, bench in benches]
    return "\n\n".join((table(HEADER, rows), LEGEND, where)) + "\n"


def places(runs: Sequence[ReportedRun]) -> list[str]:
    """Where the benchmarks were measured, those of one place together."""
    measured = collections.defaultdict(list)
    for run in runs:
        if bench := run.bench:
            measured[conditions(bench, f"{bench['repeats']} repeats")].append(run.name)
    return [f"{', '.join(names)}: {how}" for how, names in measured.items()]


def row(name: str, bench: Figures, strong: str = "") -> Iterator[str]:
    """A value for each name of HEADER; `strong` goes around the speed-up."""
    settings, speedup, forecast = bench["run"], bench["speedup"], bench.get("forecast")
    yield name
    yield f"{in_words(settings['verifier'])}, {in_words(settings['sampling'])}"
    yield str(settings["gamma"] or "")
    yield f"{strong}{speedup['ratio']:.2f}{strong} ({speedup['low']:.2f} to {speedup['high']:.2f})"
    yield f"{forecast['whole']:.2f}" if forecast else ""
    yield f"{forecast['measured_over_whole']:.2f}" if forecast else ""
    predicted = bench["prediction"]
    yield f"{predicted['measured_over_predicted']:.2f}" if predicted else ""
    yield f"{bench['tau']:.2f}"
    yield "" if bench["alpha"] is None else f"{bench['alpha']:.3f}"
    yield _identical(bench)


def _identical(bench: Figures) -> str:
    if not bench["exact"]:
        return "NOT EXACT"
    same = bench["identical"]
    return "in distribution" if same is None else f"{same} of {bench['texts'] * bench['repeats']}"
