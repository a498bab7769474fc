"""Reads summaries of measured runs from files, and matches them with published rows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NotRequired, Required, TypeAlias, TypedDict

from msgspec import Meta

from specdec.common import published
from specdec.common.environment import Environment, device_in_words
from specdec.common.json_values import JsonObject, check_kind, parsed
from specdec.common.schemas import Count
from specdec.common.statistics import Estimate
from specdec.common.terminal import counted
from specdec.measure import printed
from specdec.measure.estimator import Spread

Figures: TypeAlias = JsonObject
_Figure = float | None


class _Versions(TypedDict):
    jax: str | None


class _Machine(TypedDict, total=False):
    """The fields of `Environment` that are read; older files and those of GPUs lack some."""

    backend: Required[str]
    device: Required[str]
    devices: Required[int]
    cpu: str
    features: list[str]
    cores: int | None
    versions: Required[_Versions]
    date: str


class _Interval(TypedDict):
    low: float
    high: float


class _Speedup(_Interval):
    ratio: float
    per_token: float


class _Alpha(_Interval):
    lenience: float
    value: float


class _Settings(TypedDict):
    dtype: dict[str, str]
    parameters: dict[str, Count]
    split: str | None
    sampling: str
    drafter: str


class _BenchSettings(_Settings):
    gamma: Count | None


class _Prediction(TypedDict, total=False):
    gamma: Required[Count | None]
    these_texts: Required[_Figure]
    cost_ratio: _Figure
    verify_cost: _Figure
    measured_over_predicted: _Figure
    prefill: _Figure
    draft: _Figure
    verify: _Figure
    rest: _Figure


class _Baseline(TypedDict):
    target_step: Annotated[float, Meta(gt=0)]
    target_prefill: float


class _Forecast(TypedDict):
    whole: float
    measured_over_whole: float


class _Median(TypedDict):
    p50: float


class _Alone(TypedDict):
    alone: _Median


class Bench(TypedDict):
    """The fields that reports read of a summary of `specdec bench`."""

    environment: _Machine
    run: _BenchSettings
    texts: Count
    repeats: Count
    seconds: _Alone
    speedup: _Speedup
    identical: Count | None
    tau: float
    alpha: _Figure
    baseline: _Baseline
    prediction: _Prediction | None
    forecast: NotRequired[_Forecast | None]
    exact: bool
    beams: NotRequired[Count]


class Acceptance(TypedDict):
    """The fields that reports read of a summary of `specdec acceptance`."""

    environment: _Machine
    run: _Settings
    texts: Count
    tokens: Count
    alphas: dict[str, Annotated[list[_Alpha], Meta(min_length=1)]]


_KINDS: Mapping[str, tuple[str, type]] = {
    "bench": ("speedup", Bench),
    "acceptance": ("alphas", Acceptance),
}  # command -> a field that only its summary has, and the summary's type

# Settings in which the benchmark and the acceptance measurement of one run must agree.
SHARED = ("drafter", "sampling", "dtype", "parameters")


@dataclasses.dataclass
class ReportedRun:
    """The measured figures of one run, and the published row that it repeats."""

    name: str  # its files' name up to the first dot
    bench: Figures | None = None  # the summary of `specdec bench`; None if there is none
    acceptance: Figures | None = None  # the summary of `specdec acceptance`; None if there is none
    lines: Path | None = None  # the file of the benchmark's JSON lines
    paper: published.PaperRow | None = None


def read(paths: Iterable[str], paper: str | None = None) -> list[ReportedRun]:
    """Returns the runs whose summaries have these paths, in the order of their first file.

    `paper` is the gin file of the published row of all runs, by default each run's by its name.
    Raises ValueError for a file that is no summary, and for two of one run."""
    row = None if paper is None else _row(paper)
    runs: dict[str, ReportedRun] = {}
    for path in paths:
        kind, figures = _summary(path)
        name = Path(path).name.partition(".")[0]
        run = runs.setdefault(name, ReportedRun(name, paper=row or published.rows().get(name)))
        if getattr(run, kind) is not None:
            raise ValueError(
                f"{path} is the second summary of specdec {kind} for {name}; a run's name is its "
                "file's up to the first dot, so rename one"
            )
        setattr(run, kind, figures)
        if kind == "bench":
            run.lines = Path(path.removesuffix(".summary.json"))
        _refuse_other_settings(run)
    return list(runs.values())


def speedup(bench: Figures) -> Estimate:
    """Returns a benchmark's measured speed-up of whole texts, with its interval."""
    return Estimate(*(bench["speedup"][name] for name in ("ratio", "low", "high")))


def device(environment: Environment) -> str:
    """Returns the device and the version of JAX that measured a run, in words."""
    return f"{device_in_words(environment)}, jax {environment['versions']['jax']}"


def conditions(figures: Figures, *details: str) -> str:
    """Returns a measurement's device, models, `details` and texts in one line of words."""
    remarks = [] if figures.get("exact", True) else ["NOT EXACT"]
    if (trust := trust_of(figures)) and trust.useless:
        remarks.append(f"{trust.facts}: {trust.meaning}")
    of = device(figures["environment"]), models(figures["run"])
    return "; ".join((*of, *details, texts(figures), *remarks))


def trust_of(figures: Figures) -> printed.Trust | None:
    """Returns how far the timings of a benchmark can be trusted; None for an older file."""
    if "spread" not in figures:
        return None
    spread, load = figures["spread"], figures["run"].get("load")
    cores = figures["environment"].get("cores") or 1
    return printed.trust_of(load, spread and Spread(**spread), cores)


def models(settings: Figures) -> str:
    """Returns the models of a run with sizes and dtypes, such as "target 60.5M float32"."""
    return " and ".join(
        f"{role} {settings['parameters'][role] / 1e6:.1f}M {dtype}"
        for role, dtype in settings["dtype"].items()
    )


def texts(figures: Figures) -> str:
    """Returns the number and split of a measurement's texts, such as "32 texts of test"."""
    return f"{counted(figures['texts'], 'text')} of {figures['run']['split']}"


def in_words(setting: object) -> str:
    """Returns a setting in words, without arguments that are None."""
    if isinstance(setting, Mapping):
        return " and ".join(f"{key} {value}" for key, value in setting.items())
    return re.sub(r"(, )?\w+=None", "", str(setting))


def _summary(path: str) -> tuple[str, Figures]:
    """Returns "bench" or "acceptance", and the fields of a summary; ValueError for other files."""
    try:
        figures = parsed(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; give a file") from error
    except ValueError:
        figures = {}
    for command, (field, kind) in _KINDS.items():
        if {field, "run", "environment"} <= figures.keys():
            if figures.get("beams"):
                raise ValueError(
                    f"{path} is of a beam search, which a report does not show; leave it out"
                )
            try:
                check_kind(figures, kind)
                if figures["run"]["parameters"].keys() != figures["run"]["dtype"].keys():
                    raise ValueError("has models with a size or with a dtype alone")
            except ValueError as error:
                raise ValueError(f"{path} is no summary; it {error}; measure again") from error
            return command, figures
    raise ValueError(
        f"{path} is no summary; give FILE.summary.json, which specdec bench and specdec acceptance "
        "write next to their --output_file=FILE"
    )


def _refuse_other_settings(run: ReportedRun) -> None:
    if run.bench is None or run.acceptance is None:
        return
    for name in SHARED:
        values = [figures["run"][name] for figures in (run.bench, run.acceptance)]
        if values[0] != values[1]:
            raise ValueError(
                f"{run.name} was benchmarked with {name} {values[0]}, but its acceptance measured "
                f"with {values[1]}; a run's name is its file's up to the first dot, so rename one"
            )


def _row(file: str) -> published.PaperRow:
    if (row := published.rows().get(Path(file).stem)) is None:
        raise ValueError(f"{file} has no published figures; give a row of configs/leviathan/")
    return row
