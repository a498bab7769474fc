"""Tables and sentences about measured runs and the published rows of Leviathan et al."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterator, Sequence

from specdec.common import notebook
from specdec.common.tables import PageTable, number
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
    trust_of,
)

SPEEDUP = "speed-up (95 %)"
FEW = 3


def markdown(runs: Sequence[ReportedRun]) -> str:
    """Returns Markdown of the tables of speed-ups and of acceptance, and of the machines."""
    tables = [speeds(runs), *([alphas(runs)] if any(run.acceptance for run in runs) else [])]
    parts = [part for table in tables for part in (table.markdown(), table.legend)]
    parts.append("\n".join(f"- {notebook.markdown(line)}" for line in places(runs)))
    return "\n\n".join(parts) + "\n"


def speeds(runs: Sequence[ReportedRun]) -> PageTable:
    """Returns a table with two lines per run: the published figures, and the measured ones."""
    header = ("run", "", "gamma", "alpha", "tested", "c", "v", "predicted", "measured")
    legend = (
        "Alpha is measured on recorded texts; tested is accepted / tested draft tokens of the "
        "timed texts. Predicted is (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + v)) without "
        "prefill, in the paper with v = 1, here with tested for alpha and the measured c and v. "
        "Measured is the speed-up of whole texts. In brackets: 95 % intervals over texts."
    )
    lines = ({"run": run.name, **figures} for run in runs for figures in _speed(run))
    rows = [[line.get(name, "") for name in header] for line in lines]
    return PageTable("Next to the rows of Leviathan et al.", header, rows, legend)


def alphas(runs: Sequence[ReportedRun]) -> PageTable:
    """Returns the table of alpha by drafter and lenience; a run must have it measured."""
    measured = [run for run in runs if run.acceptance]
    leniences = [alpha["lenience"] for alpha in next(iter(_alphas(measured[0]).values()))]
    header = ("run", "drafter", *(f"l = {lenience:g}" for lenience in leniences), "tokens")
    legend = (
        "Alpha by lenience l: the mean of sum min(p/l, q); for greedy decoding, how often the "
        "draft token's p is at least l times the largest p. l = 1 is exact."
    )
    rows = [line for run in measured for line in _lenient(run)]
    return PageTable("Alpha by lenience", header, rows, legend)


def places(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns a line for each measurement of each run: device, models, sampling and texts."""
    return [
        f"{run.name}, {kind}: {conditions(figures, figures['run']['sampling'])}"
        for run in runs
        for kind, figures in (("bench", run.bench), ("acceptance", run.acceptance))
        if figures
    ]


def headline(runs: Sequence[ReportedRun]) -> str:
    """Returns Markdown of the table of benchmarks, with the machines; ValueError without any."""
    if not any(run.bench for run in runs):
        raise ValueError("none of the summaries is of specdec bench; give one for a headline")
    where = "\n".join(f"- {notebook.markdown(line)}" for line in benchmarks(runs))
    table = measured(runs, strong="**")
    return "\n\n".join((table.markdown(), table.legend, where)) + "\n"


def measured(runs: Sequence[ReportedRun], strong: str = "") -> PageTable:
    """Returns the table of benchmarks, with the mark-up `strong` around each speed-up."""
    legend = (
        "Speed-up of whole texts, prefill included, over the target alone, timed alternately in "
        "one process. Predicted by others is computed from the costs of model calls and the tokens "
        "per call of another split; the ratio to it is per token, because sampled texts differ in "
        "length. Measured / predicted uses the calls of the timed texts. In brackets: 95 % "
        "intervals over texts."
    )
    columns: dict[str, Callable[[Figures], object]] = {
        "run": operator.itemgetter("name"),
        "how": _how,
        "gamma": lambda bench: bench["run"]["gamma"] or "",
        SPEEDUP: functools.partial(_speedup, strong),
        "predicted by others": _of("forecast", "whole"),
        "measured / that, per token": _of("forecast", "measured_over_whole"),
        "measured / predicted": _of("prediction", "measured_over_predicted"),
        "tokens per call": lambda bench: number(bench["tau"], ".2f"),
        "alpha": lambda bench: number(bench["alpha"]),
        "identical": _identical,
    }
    named = ({"name": run.name, **run.bench} for run in runs if run.bench)
    return PageTable.of("Speed-up over the target alone", named, columns, legend)


def sentence(runs: Sequence[ReportedRun]) -> str:
    """Returns the speed-up, or the range of speed-ups, of all benchmarks in words."""
    ratios = [speedup(run.bench).value for run in runs if run.bench]
    if not ratios:
        return "Speculative decoding, measured"
    if len(ratios) == 1:
        return f"{ratios[0]:.2f} times as fast as the target alone"
    if len(ratios) == 2:
        return f"{ratios[0]:.2f} and {ratios[1]:.2f} times as fast as the target alone: two runs"
    ends = f"the slowest {min(ratios):.2f}, the fastest {max(ratios):.2f}"
    return f"{len(ratios)} runs: {ends} times as fast as the target alone"


def facts(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """Returns name -> values of the facts at the head of a page, such as models and machines.

    Facts with more than FEW different values are left out."""
    facts: dict[str, list[str]] = collections.defaultdict(list)
    benches = [run.bench for run in runs if run.bench]
    if len(benches) == 1:
        facts["95 % interval"].append(speedup(benches[0]).interval())
        facts["identical outputs"].append(_identical(benches[0]))
        if (trust := trust_of(benches[0])) and trust.meaning:
            name = "machine is busy" if trust.busy else "times"
            facts[name].append(f"{trust.facts}: {trust.meaning}")
    for figures in [*benches, *(run.acceptance for run in runs if run.acceptance)]:
        settings = figures["run"]
        facts["models"].append(models(settings))
        drafts = (in_words(settings.get(name)) for name in ("drafter", "schedule", "verifier"))
        facts["drafts"].append(", ".join(part for part in drafts if part != "None"))
        facts["sampling"].append(in_words(settings["sampling"]))
        facts["machine"].append(device(figures["environment"]))
        facts["texts"].append(texts(figures))
        if date := figures["environment"].get("date"):  # older files have none
            facts["date"].append(date)
    different = {name: list(dict.fromkeys(values)) for name, values in facts.items()}
    return {name: values for name, values in different.items() if len(values) <= FEW}


def benchmarks(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns a line for each group of benchmarks with the same device, models and texts."""
    measured = collections.defaultdict(list)
    for run in runs:
        if bench := run.bench:
            how = conditions(bench, counted(bench["repeats"], "repeat"))
            measured[how].append(run.name)
    return [f"{', '.join(names)}: {how}" for how, names in measured.items()]


def _how(bench: Figures) -> str:
    settings = bench["run"]
    names = ("verifier", "sampling") if settings["gamma"] else ("schedule", "verifier", "sampling")
    return ", ".join(in_words(settings[name]) for name in names)


def _speedup(strong: str, bench: Figures) -> str:
    ratio = speedup(bench)
    return f"{strong}{ratio.value:.2f}{strong} ({ratio.interval()})"


def _of(prediction: str, name: str) -> Callable[[Figures], str]:
    """Returns a function that shows figure `name` of a benchmark's prediction, '' if missing."""
    return lambda bench: number((bench.get(prediction) or {}).get(name), ".2f")


def _identical(bench: Figures) -> str:
    if not bench["exact"]:
        return "NOT EXACT"
    same = bench["identical"]
    return "in distribution" if same is None else f"{same} of {bench['texts'] * bench['repeats']}"


def _speed(run: ReportedRun) -> Iterator[Figures]:
    """Yields column -> cell of the published figures, if any, and of the measured ones."""
    if paper := run.paper:
        figures = {"gamma": paper.gamma, "alpha": paper.alpha, "c": paper.c, "v": 1}
        figures |= {"predicted": paper.expected, "measured": paper.measured}
        yield {"": "paper", **{name: f"{figure:g}" for name, figure in figures.items()}}
    ours = {"": "here"}
    if run.acceptance:
        ours["alpha"] = _with_interval(_alphas(run)["model"][0], "value")
    if bench := run.bench:
        prediction = bench["prediction"] or {}
        ours |= {
            "gamma": number(bench["run"]["gamma"], ""),
            "tested": number(bench["alpha"]),
            "c": number(prediction.get("cost_ratio")),
            "v": number(prediction.get("verify_cost")),
            "predicted": number(prediction.get("long_generation")),
            "measured": _with_interval(bench["speedup"], "ratio"),
        }
    yield ours


def _lenient(run: ReportedRun) -> Iterator[Sequence[str]]:
    assert run.acceptance is not None
    tokens = str(run.acceptance["tokens"])
    for drafter, alphas in _alphas(run).items():
        yield run.name, drafter, *(_with_interval(alpha, "value") for alpha in alphas), tokens


def _with_interval(figures: Figures, name: str) -> str:
    return f"{figures[name]:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]"


def _alphas(run: ReportedRun) -> Figures:
    assert run.acceptance is not None
    return run.acceptance["alphas"]
