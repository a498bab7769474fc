"""The result of benchmarks, in a sentence and as a short table with predictions."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from specdec.common import notebook
from specdec.common.tables import Table
from specdec.instrument.report import summaries
from specdec.instrument.report.summaries import Figures, ReportedRun, conditions, in_words

SPEEDUP = "speed-up (95 %)"
FEW = 3
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
    "Speed-up of whole texts, prefill included, over the target alone, interleaved in one process. "
    "Predicted by others is what follows from the parts' costs and the tokens per call of another "
    "split; the ratio to it is per token, since texts that are drawn differ in length. Measured / "
    "predicted takes the calls of these texts. In brackets: 95 % intervals over texts."
)


def headline(runs: Sequence[ReportedRun]) -> str:
    """Returns a line for each benchmark, and where they were measured."""
    benches = [(run.name, run.bench) for run in runs if run.bench]
    if not benches:
        raise ValueError("none of the summaries is of specdec bench; a headline is of speed-ups")
    where = "\n".join(f"- {notebook.markdown(line)}" for line in places(runs))
    rows = [tuple(row(name, bench, strong="**")) for name, bench in benches]
    table = Table("", HEADER, rows, LEGEND)
    return "\n\n".join((table.markdown(), table.legend, where)) + "\n"


def sentence(runs: Sequence[ReportedRun]) -> str:
    """Returns the result of all benchmarks in one sentence."""
    ratios = [summaries.speedup(run.bench).value for run in runs if run.bench]
    if not ratios:
        return "Speculative decoding, measured"
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times as fast as the target alone"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as the target alone"
    return f"{spread}, in {len(ratios)} runs"


def facts(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """Returns the first facts of a page: a single run's interval, and conditions by name.

    A condition with more than `FEW` values is left out, because the table has it for each run.
    """
    found: dict[str, dict[str, None]] = collections.defaultdict(dict)
    benches = [run.bench for run in runs if run.bench]
    if len(benches) == 1:
        found["95 % interval"][summaries.speedup(benches[0]).interval()] = None
        found["identical outputs"][_identical(benches[0])] = None
    for one in [*benches, *(run.acceptance for run in runs if run.acceptance)]:
        settings = one["run"]
        found["models"][summaries.models(settings)] = None
        drafts = (in_words(settings.get(name)) for name in ("drafter", "schedule", "verifier"))
        found["drafts"][", ".join(part for part in drafts if part != "None")] = None
        found["sampling"][in_words(settings["sampling"])] = None
        found["machine"][summaries.device(one["environment"])] = None
        found["texts"][summaries.texts(one)] = None
        if date := one["environment"].get("date"):  # older files have none
            found["date"][date] = None
    return {name: list(values) for name, values in found.items() if len(values) <= FEW}


def places(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns where the benchmarks were measured, grouped by place."""
    measured = collections.defaultdict(list)
    for run in runs:
        if bench := run.bench:
            repeats = f"{bench['repeats']} repeat{'s' * (bench['repeats'] != 1)}"
            measured[conditions(bench, repeats)].append(run.name)
    return [f"{', '.join(names)}: {how}" for how, names in measured.items()]


def row(name: str, bench: Figures, strong: str = "") -> Iterator[str]:
    """Yields a value for each name of HEADER; `strong` goes around the speed-up."""
    settings, speedup, forecast = bench["run"], summaries.speedup(bench), bench.get("forecast")
    yield name
    names = ("verifier", "sampling") if settings["gamma"] else ("schedule", "verifier", "sampling")
    yield ", ".join(in_words(settings[name]) for name in names)
    yield str(settings["gamma"] or "")
    yield f"{strong}{speedup.value:.2f}{strong} ({speedup.interval()})"
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
