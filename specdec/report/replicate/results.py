"""The figures of a study's rows, read from the files of their commands."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict, TypeVar

from msgspec import Meta

from specdec.common.json_values import parsed
from specdec.common.records import Lines
from specdec.common.values import UsageError
from specdec.report.replicate.study import Study, StudyRow
from specdec.report.summaries import Acceptance, Bench

T = TypeVar("T")

HERE = "here"  # the costs of this device, next to topologies
GROWN, SYNTHETIC, NOT_EXACT = "GROWN", "SYNTHETIC", "NOT EXACT"
BY_SHAPES = "from shapes"
PLANNED = "row", "flags", "grown", "steps", "bytes", "minutes"  # fields that no page has


class Step(NamedTuple):
    """A command of a row."""

    row: str  # '' for a command that several rows share
    name: str
    argv: tuple[str, ...]  # what follows `specdec`


@dataclasses.dataclass
class Place:
    """A row's run on a topology, or on this device; None for what is not known."""

    memory: int = 0  # bytes of one device; parameters and caches alone where `said` is not empty
    limit: int = 0  # bytes that a device has; 0 if it is not known
    # what the compiler says of a program that does not fit, or how the memory was counted
    said: str = ""
    cost_ratio: float | None = None  # c
    # the tokens per call from which speculation is faster than the target alone
    pays_from: float | None = None
    given: float | None = None  # the predicted speed-up at a given acceptance
    recorded: float | None = None  # the predicted speed-up of recorded texts


@dataclasses.dataclass
class RowFigures:
    """All that is known of a row; None for a figure that is not."""

    row: StudyRow
    missing: Sequence[str] = ()  # what it lacks, in words; nothing of this can be measured
    marks: Sequence[str] = ()  # what its measured figures say with them, such as GROWN
    flags: Sequence[str] = ()  # the flags of its run; () if it cannot be run
    # the presets of models that are grown from the embedded pair, by role
    grown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: Sequence[Step] = ()  # the commands that measure it
    bytes: int | None = None  # of its run's parameters and caches on this device
    minutes: float | None = None  # that its commands take, roughly
    # layers, parameters: of its draft; 0 without one
    layers: int = 0
    parameters: int = 0
    places: dict[str, Place] = dataclasses.field(default_factory=dict)  # by topology, and `HERE`
    # figures by name: speedup, low, high, per_token, alpha, cost_ratio, tokens_per_call, target and
    # run (of `metric`)
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    metric: str = ""  # the name of the metric
    identical: str = ""  # outputs that are the target's, of how many; or the certificate
    # measured acceptance rates, by drafter
    alphas: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    exact: bool = True  # whether the measured run is exact
    failures: dict[str, str] = dataclasses.field(default_factory=dict)  # what failed, by step

    def at(self, where: str) -> Place:
        """Returns the figures of a place."""
        return self.places.get(where, Place())

    def marked(self, text: str) -> str:
        """Returns a measured figure with all that keeps it from being the paper's."""
        inexact = [] if self.exact or NOT_EXACT in self.marks else [NOT_EXACT]
        return " ".join([text, *self.marks, *inexact]) if text else ""

    def failed(self) -> str:
        """Returns what failed, in words."""
        return "; ".join(f"{step}: {reason}" for step, reason in self.failures.items())

    def over_predicted(self) -> float | None:
        """Returns the measured speed-up per token over the one that is predicted here."""
        predicted, measured = self.at(HERE).recorded, self.measured.get("per_token")
        return measured / predicted if predicted and measured else None

    def record(self) -> dict[str, object]:
        """Returns plain values, for JSON."""
        plain = dataclasses.asdict(self)
        about = {"row": self.row.name, "published": plain["row"]["published"]}
        return about | {name: x for name, x in plain.items() if name not in PLANNED}


def place_path(folder: Path, row: StudyRow, where: str, what: str) -> Path:
    """Returns the file of a row's figures on a topology or on this device."""
    return folder / f"{row.name}.{where.replace(':', '_')}.{what}"


def measured(figures: RowFigures, folder: Path) -> None:
    """Reads the files that a row's commands wrote to `folder`, and puts their figures into
    `figures`."""
    stem = folder / figures.row.name
    figures.measured, figures.alphas, figures.identical = {}, {}, ""
    if bench := load(f"{stem}.jsonl.summary.json", Bench):
        _add_bench(figures, bench)
    if acceptance := load(f"{stem}.alpha.jsonl.summary.json", Acceptance):
        for drafter, alphas in acceptance["alphas"].items():
            figures.alphas[drafter] = [alpha["value"] for alpha in alphas]
        figures.measured["alpha"] = figures.alphas["model"][0]
    for name in (*figures.places, HERE):
        path = place_path(folder, figures.row, name, "jsonl")
        for line in Lines(path, _Place):  # the last counts
            figures.places.setdefault(name, Place()).recorded = line["speedup"]
    if report := load(f"{stem}.eval/metrics.json", _Metrics):
        ways = report["metrics"]
        figures.metric, figures.measured["target"] = next(iter(ways["alone"].items()))
        others = [values[figures.metric] for way, values in ways.items() if way != "alone"]
        figures.measured["run"] = others[0] if others else figures.measured["target"]
    if certificate := load(f"{stem}.verify.json", _Certificate):
        passed = "passed" if certificate["certified"] else "passed, with too few texts"
        figures.identical = f"certificate: {passed if certificate['passed'] else 'FAILED'}"


def _add_bench(figures: RowFigures, bench: Mapping) -> None:
    speedup, prediction = bench["speedup"], bench["prediction"] or {}
    figures.exact = bench["exact"]
    values = {
        "speedup": speedup["ratio"],
        "low": speedup["low"],
        "high": speedup["high"],
        "per_token": speedup["per_token"],
        "tokens_per_call": bench["tau"],
        "seconds_alone": bench["seconds"]["alone"]["p50"],
        "beams": bench.get("beams", 0),
        "alpha": bench["alpha"],
        "cost_ratio": prediction.get("cost_ratio"),
    }
    figures.measured = {name: value for name, value in values.items() if value is not None}
    if bench["identical"] is not None:
        figures.identical = f"{bench['identical']} of {bench['texts'] * bench['repeats']}"
    elif figures.exact:
        figures.identical = "in distribution"


def relative_to_greedy(rows: Sequence[RowFigures]) -> None:
    """Sets the speed-up of a beam search to that of the target's beams over its greedy search."""
    greedy = (x.measured.get("seconds_alone") for x in rows if not x.measured.get("beams", 1))
    alone = next(greedy, None)
    for figures in rows:
        if figures.measured.get("beams"):
            for name in ("speedup", "low", "high", "per_token"):
                del figures.measured[name]
            if alone is not None:
                figures.measured["speedup"] = alone / figures.measured["seconds_alone"]
                figures.measured["tokens_per_call"] = 1.0


def depth_or_width(rows: Sequence[RowFigures]) -> Iterator[str]:
    """Yields a sentence for each two drafts of one target that differ in depth and not in size."""
    for deep, wide in itertools.permutations([figures for figures in rows if figures.layers], 2):
        same_target = deep.row.needs[:1] == wide.row.needs[:1]
        same_size = abs(deep.parameters / wide.parameters - 1) <= 0.15
        if not (same_target and same_size and deep.layers >= 2 * wide.layers):
            continue
        for where, on_device in deep.places.items():
            if (deep_pays := on_device.pays_from) and (other := wide.at(where).pays_from):
                verb = f"{deep_pays / other:.2f} times as many" if deep_pays > other else "fewer"
                sizes = " and ".join(f"{x.parameters / 1e6:,.0f}M" for x in (deep, wide))
                yield (
                    f"{where}: {deep.row.name} has {deep.layers} layers, {wide.row.name} has "
                    f"{wide.layers}, with {sizes} parameters. The deep draft needs {verb} tokens "
                    "per call for the same speed."
                )


class _Row(TypedDict):
    row: str
    measured: dict[str, float | None]
    marks: list[str]


class _Page(TypedDict):
    study: str
    rows: list[_Row]


class _Metrics(TypedDict):
    metrics: dict[str, Annotated[dict[str, float], Meta(min_length=1)]]


class _Certificate(TypedDict):
    passed: bool
    certified: bool


class _Place(TypedDict):
    speedup: float | None


class Earlier(NamedTuple):
    """The rows of an earlier page, by name, as `RowFigures.record` has them."""

    folder: str
    rows: Mapping[str, Mapping]


def earlier(folder: str, study: Study) -> Earlier:
    """Returns the page of a study in a folder."""
    path = Path(folder) / "page.json"
    if (page := load(path, _Page)) is None:
        raise UsageError(f"--compare {folder} has no page.json; give a folder of specdec replicate")
    if (of := page["study"]) != study.name:
        raise UsageError(f"--compare: {path} is of {of}; give a folder of the study {study.name}")
    rows = {row["row"]: row for row in page["rows"]}
    if not any(row.name in rows for row in study.rows):
        names = ", ".join(row.name for row in study.rows)
        raise UsageError(f"--compare: {path} has none of {names}; give a folder that has one")
    return Earlier(folder, rows)


def load(path: str | Path, kind: type[T]) -> T | None:
    """Returns the JSON object of a file, None if there is no such file."""
    if not (file := Path(path)).is_file():
        return None
    try:
        return parsed(file.read_bytes(), kind)
    except ValueError as error:
        raise UsageError(f"{path} {error}; delete it, and the command makes it again") from error
