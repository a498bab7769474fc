"""Runs and published rows as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec.common import notebook
from specdec.common.tables import Table
from specdec.instrument.report.summaries import Figures, ReportedRun, conditions


def markdown(runs: Sequence[ReportedRun]) -> str:
    """Returns two tables, of speed and of acceptance, and where they were measured."""
    tables = [speeds(runs), *([alphas(runs)] if any(run.acceptance for run in runs) else [])]
    parts = [part for one in tables for part in (one.markdown(), one.legend)]
    parts.append("\n".join(f"- {notebook.markdown(line)}" for line in places(runs)))
    return "\n\n".join(parts) + "\n"


def speeds(runs: Sequence[ReportedRun]) -> Table:
    """Returns the table of speed-ups: a line of the paper, and one of ours."""
    header = ("run", "", "gamma", "alpha", "tested", "c", "v", "predicted", "measured")
    legend = (
        "Alpha is teacher-forced, tested is accepted / tested drafts of the timed texts. Predicted "
        "is (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + v)), in the paper with v = 1, here "
        "with the tested alpha and the measured c and v, for texts so long that prefill does not "
        "count; measured is the speed-up of whole texts. In brackets: 95 % intervals over texts."
    )
    rows = [line for run in runs for line in _speed(run)]
    return Table("Next to the rows of Leviathan et al.", header, rows, legend)


def alphas(runs: Sequence[ReportedRun]) -> Table:
    """Returns the table of alpha by lenience; at least one run must have it measured."""
    measured = [run for run in runs if run.acceptance]
    leniences = [alpha["lenience"] for alpha in next(iter(_alphas(measured[0]).values()))]
    header = ("run", "drafter", *(f"l = {lenience:g}" for lenience in leniences), "tokens")
    legend = (
        "Alpha by lenience l: the mean of sum min(p/l, q); greedily, how often p is at least l "
        "times its maximum at the draft's choice. l = 1 is exact."
    )
    rows = [line for run in measured for line in _lenient(run)]
    return Table("Alpha by lenience", header, rows, legend)


def places(runs: Sequence[ReportedRun]) -> list[str]:
    """Returns where, with what and over which texts each run was measured."""
    return [
        f"{run.name}, {kind}: {conditions(figures, figures['run']['sampling'])}"
        for run in runs
        for kind, figures in (("bench", run.bench), ("acceptance", run.acceptance))
        if figures
    ]


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
