"""Measured runs beside published ones, as Markdown.

A run goes by the name of its file up to the first dot: `ende_small_t0.jsonl.summary.json` is laid
beside the row that configs/leviathan/ende_small_t0.gin repeats, and `specdec bench` and
`specdec acceptance` of one name make one row.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Figures: TypeAlias = Mapping[str, Any]

# What must be equal in a benchmark and an acceptance measurement for them to be of one run.
SHARED = ("drafter", "sampling", "dtype", "parameters")


@dataclasses.dataclass
class Run:
    """What `specdec bench` and `specdec acceptance` wrote about a run; None if it was not run.

    paper: the published figures, alpha, gamma, c, Exp and Emp.
    """

    name: str
    bench: Figures | None = None
    acceptance: Figures | None = None
    paper: Mapping[str, float] | None = None


def read(paths: Iterable[str], paper: str | None = None) -> list[Run]:
    """The runs of some summaries, in the order in which they are first named.

    Args:
      paths: `FILE.summary.json` of `specdec bench` or `specdec acceptance`.
      paper: the gin file of the published row, of all of them; None for the one of the same name.

    Raises:
      ValueError: a file is no summary, two are of one run and one command, or those of one run are
        of different ones; or the gin file has no published figures.
    """
    published = None if paper is None else _published(paper)
    runs: dict[str, Run] = {}
    for path in paths:
        kind, figures = _summary(path)
        name = Path(path).name.partition(".")[0]
        run = runs.setdefault(name, Run(name, paper=published or _row(name)))
        if getattr(run, kind) is not None:
            raise ValueError(
                f"{path} is the second summary of specdec {kind} for {name}; what is before the "
                "first dot of a file's name is the run's, so rename one"
            )
        setattr(run, kind, figures)
        _refuse_other_settings(run)
    return list(runs.values())


def markdown(runs: Sequence[Run]) -> str:
    """Two tables, of speed and of acceptance, and where it was measured."""
    parts = [_table(SPEED, (line for run in runs for line in _speed(run))), LEGEND]
    measured = [run for run in runs if run.acceptance]
    if measured:
        leniences = [alpha["lenience"] for alpha in next(iter(_alphas(measured[0]).values()))]
        header = ("run", "drafter", *(f"l = {lenience:g}" for lenience in leniences), "tokens")
        parts.append(_table(header, (line for run in measured for line in _lenient(run))))
        parts.append(
            "Alpha by lenience l: the mean of sum min(p/l, q); greedily, how often p is at least l "
            "times its maximum at the draft's choice. l = 1 is exact."
        )
    parts.append("\n".join(line for run in runs for line in _conditions(run)))
    return "\n\n".join(parts) + "\n"


SPEED = ("run", "", "gamma", "alpha", "tested", "c", "v", "expected", "measured")
LEGEND = (
    "Alpha is teacher-forced, tested is accepted / tested drafts of the timed texts. Expected is "
    "(1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + v)), in the paper with v = 1, here with the "
    "tested alpha and the measured c and v, for texts so long that prefill does not count; "
    "measured is the speed-up of whole texts. In brackets: 95 % intervals over texts."
)


def _speed(run: Run) -> Iterator[Sequence[str]]:
    """The paper's line and ours."""
    if paper := run.paper:
        gamma, alpha, c = (f"{paper[name]:g}" for name in ("gamma", "alpha", "c"))
        yield run.name, "paper", gamma, alpha, "", c, "1", f"{paper['Exp']:g}", f"{paper['Emp']:g}"
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


def _lenient(run: Run) -> Iterator[Sequence[str]]:
    assert run.acceptance is not None
    tokens = str(run.acceptance["tokens"])
    for drafter, alphas in _alphas(run).items():
        yield run.name, drafter, *(_with_interval(alpha, "value") for alpha in alphas), tokens


def _conditions(run: Run) -> Iterator[str]:
    for kind in ("bench", "acceptance"):
        if figures := getattr(run, kind):
            where, settings = figures["environment"], figures["run"]
            device = f"{where['devices']} x {where['device']}"
            if where["backend"] == "cpu":
                device = f"{where['cores']} cores of {where['cpu']}"
            models = " and ".join(
                f"{role} {settings['parameters'][role] / 1e6:.1f}M {dtype}"
                for role, dtype in settings["dtype"].items()
            )
            yield (
                f"- {run.name}, {kind}: {device}, jax {where['versions']['jax']}; {models}; "
                f"{settings['sampling']}; {figures['texts']} texts of {settings['split']}"
            )


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _with_interval(figures: Figures, name: str) -> str:
    return f"{figures[name]:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]"


def _alphas(run: Run) -> Figures:
    assert run.acceptance is not None
    return run.acceptance["alphas"]


def _summary(path: str) -> tuple[str, Figures]:
    """Which command wrote it, and what."""
    try:
        figures = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError:
        figures = None
    for kind, field in (("bench", "speedup"), ("acceptance", "alphas")):
        if isinstance(figures, dict) and field in figures:
            return kind, figures
    raise ValueError(
        f"{path} is no summary; give FILE.summary.json, which specdec bench and specdec acceptance "
        "write next to their --output_file=FILE"
    )


def _refuse_other_settings(run: Run) -> None:
    if run.bench is None or run.acceptance is None:
        return
    for name in SHARED:
        values = [figures["run"][name] for figures in (run.bench, run.acceptance)]
        if values[0] != values[1]:
            raise ValueError(
                f"{run.name} was benchmarked with {name} {values[0]}, but its acceptance measured "
                f"with {values[1]}; what is before the first dot of a file's name is the run's, so "
                "rename one"
            )


def _row(name: str) -> Mapping[str, float] | None:
    """The published figures of a run, None if there is no row of this name."""
    path = _configs() / "leviathan" / f"{name}.gin"
    return _header(path) if path.is_file() else None


def _published(file: str) -> Mapping[str, float]:
    path = next(filter(Path.is_file, (Path(file), _configs() / file)), None)
    if path is None:
        raise ValueError(f"gin file {file} not found; check the name, see configs/leviathan/")
    if (figures := _header(path)) is None:
        raise ValueError(f"{file} has no published figures; give a row of configs/leviathan/")
    return figures


def _header(path: Path) -> Mapping[str, float] | None:
    """The figures that a gin file's header gives as the paper's."""
    line = re.search(r"^#   paper: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        return None
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", line[1])}


def _configs() -> Path:
    """configs/: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "_configs"
    return installed if installed.is_dir() else package.parent / "configs"
