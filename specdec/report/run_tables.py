"""Runs and published rows as tables, in Markdown and in a sentence."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from specdec.common import notebook
from specdec.common.tables import PageTable
from specdec.common.terminal import counted
from specdec.report.summaries import (
    Figures,
    ReportedRun,
    conditions,
    device,
    in_words,
    models,
    speedup,
    texts,
)

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


def markdown(runs: Sequence[ReportedRun]) -> str:
    """Returns two tables, of speed and of acceptance, and where they were measured."""
    tables = [speeds(runs), *([alphas(runs)] if any(run.acceptance for run in runs) else [])]
    parts = [part for one in tables for part in (one.markdown(), one.legend)]
    parts.append("\n".join(f"- {notebook.markdown(line)}" for line in places(runs)))
    return "\n\n".join(parts) + "\n"


def speeds(runs: Sequence[ReportedRun]) -> PageTable:
    """Returns the table of speed-ups: a line of the paper, and one of ours."""
    header = ("run", "", "gamma", "alpha", "tested", "c", "v", "predicted", "measured")
    legend = (
        "Alpha is teacher-forced, tested is accepted / tested drafts of the timed texts. Predicted "
        "is (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + v)), in the paper with v = 1, here "
        "with the tested alpha and the measured c and v, for texts so long that prefill does not "
        "count; measured is the speed-up of whole texts. In brackets: 95 % intervals over texts."
    )
    rows = [line for run in runs for line in _speed(run)]
    return PageTable("Next to the rows of Leviathan et al.", header, rows, legend)


def alphas(runs: Sequence[ReportedRun]) -> PageTable:
    """Returns the table of alpha by lenience; at least one run must have it measured."""
    measured = [run for run in runs if run.acceptance]
    leniences = [alpha["lenience"] for alpha in next(iter(_alphas(measured[0]).values()))]
    header = ("run", "drafter", *(f"l = {lenience:g}" for lenience in leniences), "tokens")
    legend = (
        "Alpha by lenience l: the mean of sum min(p/l, q); greedily, how often p is at least l "
        "times its maximum at the draft's choice. l = 1 is exact."
    )
    rows = [line for run in measured for line in _lenient(run)]
    return PageTable("Alpha by lenience", header, rows, legend)


def places(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns where, with what and over which texts each run was measured."""
    return [
        f"{run.name}, {kind}: {conditions(figures, figures['run']['sampling'])}"
        for run in runs
        for kind, figures in (("bench", run.bench), ("acceptance", run.acceptance))
        if figures
    ]


def headline(runs: Sequence[ReportedRun]) -> str:
    """Returns a line for each benchmark, and where they were measured."""
    if not any(run.bench for run in runs):
        raise ValueError("none of the summaries is of specdec bench; a headline is of speed-ups")
    where = "\n".join(f"- {notebook.markdown(line)}" for line in benchmarks(runs))
    table = measured(runs, strong="**")
    return "\n\n".join((table.markdown(), table.legend, where)) + "\n"


def measured(runs: Sequence[ReportedRun], strong: str = "") -> PageTable:
    """Returns the table of benchmarks; `strong` goes around each speed-up."""
    legend = (
        "Speed-up of whole texts, prefill included, over the target alone, interleaved in one "
        "process. Predicted by others is what follows from the parts' costs and the tokens per "
        "call of another split; the ratio to it is per token, since texts that are drawn differ in "
        "length. Measured / predicted takes the calls of these texts. In brackets: 95 % intervals "
        "over texts."
    )
    rows = [tuple(_measured(run.name, run.bench, strong)) for run in runs if run.bench]
    return PageTable("Speed-up over the target alone", HEADER, rows, legend)


def sentence(runs: Sequence[ReportedRun]) -> str:
    """Returns the result of all benchmarks in one sentence."""
    ratios = [speedup(run.bench).value for run in runs if run.bench]
    if not ratios:
        return "Speculative decoding, measured"
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times as fast as the target alone"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as the target alone"
    return f"{spread}, in {len(ratios)} runs"


def facts(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """Returns the first facts of a page: a single run's interval, and conditions by name."""
    found: dict[str, dict[str, None]] = collections.defaultdict(dict)
    benches = [run.bench for run in runs if run.bench]
    if len(benches) == 1:
        found["95 % interval"][speedup(benches[0]).interval()] = None
        found["identical outputs"][_identical(benches[0])] = None
    for one in [*benches, *(run.acceptance for run in runs if run.acceptance)]:
        settings = one["run"]
        found["models"][models(settings)] = None
        drafts = (in_words(settings.get(name)) for name in ("drafter", "schedule", "verifier"))
        found["drafts"][", ".join(part for part in drafts if part != "None")] = None
        found["sampling"][in_words(settings["sampling"])] = None
        found["machine"][device(one["environment"])] = None
        found["texts"][texts(one)] = None
        if date := one["environment"].get("date"):  # older files have none
            found["date"][date] = None
    return {name: list(values) for name, values in found.items() if len(values) <= FEW}


def benchmarks(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns where the benchmarks were measured, grouped by place."""
    measured = collections.defaultdict(list)
    for run in runs:
        if bench := run.bench:
            how = conditions(bench, counted(bench["repeats"], "repeat"))
            measured[how].append(run.name)
    return [f"{', '.join(names)}: {how}" for how, names in measured.items()]


def _measured(name: str, bench: Figures, strong: str) -> Iterator[str]:
    """Yields a value for each name of HEADER; `strong` goes around the speed-up."""
    settings, ratio, forecast = bench["run"], speedup(bench), bench.get("forecast")
    yield name
    names = ("verifier", "sampling") if settings["gamma"] else ("schedule", "verifier", "sampling")
    yield ", ".join(in_words(settings[name]) for name in names)
    yield str(settings["gamma"] or "")
    yield f"{strong}{ratio.value:.2f}{strong} ({ratio.interval()})"
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


def _speed(run: ReportedRun) -> Iterator[Sequence[str]]:
    """Yields the paper's line and ours."""
    if paper := run.paper:
        figures = (paper.gamma, paper.alpha, paper.c, paper.expected, paper.measured)
        gamma, alpha, c, expected, measured = (f"{figure:g}" for figure in figures)
        yield run.name, "paper", gamma, alpha, "", c, "1", expected, measured
    alpha = _with_interval(_alphas(run)["model"][0], "value") if run.acceptance else ""
    if run.bench is None:
        yield run.name, "here", "", alpha, "", "", "", "", ""
        return
    bench, predicted = run.bench, run.bench["prediction"]
    names = ("cost_ratio", "verify_cost", "long_generation")
    c, v, expected = (_figure(predicted and predicted[name]) for name in names)
    gamma = "" if bench["run"]["gamma"] is None else str(bench["run"]["gamma"])
    measured = _with_interval(bench["speedup"], "ratio")
    yield run.name, "here", gamma, alpha, _figure(bench["alpha"]), c, v, expected, measured


def _lenient(run: ReportedRun) -> Iterator[Sequence[str]]:
    assert run.acceptance is not None
    tokens = str(run.acceptance["tokens"])
    for drafter, alphas in _alphas(run).items():
        yield run.name, drafter, *(_with_interval(alpha, "value") for alpha in alphas), tokens


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _with_interval(figures: Figures, name: str) -> str:
    return f"{figures[name]:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]"


def _alphas(run: ReportedRun) -> Figures:
    assert run.acceptance is not None
    return run.acceptance["alphas"]
