"""The short table: what each benchmark measured, and what was to be expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec.report.runs import Run, conditions, in_words
from specdec.report.tables import table

HEADER = (
    "run",
    "how",
    "gamma",
    "speed-up (95 %)",
    "forecast",
    "measured / forecast",
    "tokens per call",
    "alpha",
    "identical",
)


def headline(runs: Sequence[Run]) -> str:
    """A line for each benchmark, and where they were measured."""
    benches = [run for run in runs if run.bench]
    if not benches:
        raise ValueError("none of the summaries is of specdec bench; a headline is of speed-ups")
    lines = dict.fromkeys(line for run in benches for line in conditions(run, "bench"))
    return f"{table(HEADER, map(tuple, map(_row, benches)))}\n\n" + "\n".join(lines) + "\n"


def _row(run: Run) -> Iterator[str]:
    bench = run.bench
    assert bench is not None
    settings, speedup, forecast = bench["run"], bench["speedup"], bench.get("forecast")
    yield run.name
    yield f"{in_words(settings['verifier'])}, {in_words(settings['sampling'])}"
    yield str(settings["gamma"] or "")
    yield f"**{speedup['ratio']:.2f}** ({speedup['low']:.2f} to {speedup['high']:.2f})"
    yield f"{forecast['whole']:.2f}" if forecast else ""
    yield f"{forecast['measured_over_whole']:.2f}" if forecast else ""
    yield f"{bench['tau']:.2f}"
    yield "" if bench["alpha"] is None else f"{bench['alpha']:.3f}"
    pairs = bench["texts"] * bench["repeats"]
    same = bench["identical"]
    yield "in distribution" if same is None else f"{same} of {pairs}"
