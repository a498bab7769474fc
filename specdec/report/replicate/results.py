"""The figures of a study's rows, and their reader from the files that commands wrote."""

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

HERE = "here"  # names this device, as the other places are topologies
GROWN, SYNTHETIC, NOT_EXACT = "GROWN", "SYNTHETIC", "NOT EXACT"
BY_SHAPES = "from shapes"
PLANNED = "row", "flags", "grown", "steps", "bytes", "minutes"  # fields that page.json leaves out


class Step(NamedTuple):
    """A `specdec` command that measures a row."""

    row: str  # the row's name; '' for a command that several rows share
    name: str
    argv: tuple[str, ...]  # the arguments after `specdec`


@dataclasses.dataclass
class Place:
    """The predictions for a row on a topology or on this device; None if unknown."""

    memory: int = 0  # bytes that the run needs on one device; without temporaries if BY_SHAPES
    limit: int = 0  # bytes that a device has; 0 if unknown
    said: str = ""  # BY_SHAPES, or the compiler's message for a program that does not fit
    cost_ratio: float | None = None  # c
    pays_from: float | None = None  # the tokens per call at which the speed-up is 1
    given: float | None = None  # the speed-up predicted from the published acceptance
    recorded: float | None = None  # the speed-up predicted from recorded texts


@dataclasses.dataclass
class RowFigures:
    """The plan and all figures of a row of a study; a figure is None if unknown."""

    row: StudyRow
    missing: Sequence[str] = ()  # checkpoints and data that the run lacks, in words
    marks: Sequence[str] = ()  # words that are printed with measured figures, such as GROWN
    flags: Sequence[str] = ()  # the flags of the run; () if it cannot be run
    # role -> preset of models that are grown from the embedded demo pair
    grown: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: Sequence[Step] = ()  # the commands that measure the row
    bytes: int | None = None  # of parameters and caches on this device
    minutes: float | None = None  # an estimate for all commands
    layers: int = 0  # of the draft models; 0 without any
    parameters: int = 0  # of the draft models
    places: dict[str, Place] = dataclasses.field(default_factory=dict)  # topology or HERE -> Place
    # name -> figure: speedup, low, high, per_token, alpha, cost_ratio, tokens_per_call; and the
    # values of `metric`: target (for the target alone) and run
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    metric: str = ""  # the name of the metric
    identical: str = ""  # the number of outputs equal to the target's, or the certificate's verdict
    # drafter -> measured acceptance rates by lenience
    alphas: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    exact: bool = True  # whether the measured run is exact
    failures: dict[str, str] = dataclasses.field(default_factory=dict)  # command -> its error

    def at(self, where: str) -> Place:
        """Returns the predictions for a topology or HERE, empty ones if there are none."""
        return self.places.get(where, Place())

    def marked(self, text: str) -> str:
        """Returns a measured figure with marks of its differences from the paper, such as GROWN."""
        inexact = [] if self.exact or NOT_EXACT in self.marks else [NOT_EXACT]
        return " ".join([text, *self.marks, *inexact]) if text else ""

    def failed(self) -> str:
        """Returns "COMMAND: ERROR" of the commands that failed, '' if none did."""
        return "; ".join(f"{step}: {reason}" for step, reason in self.failures.items())

    def over_predicted(self) -> float | None:
        """Returns measured / predicted speed-up per token on this device; None if unknown."""
        predicted, measured = self.at(HERE).recorded, self.measured.get("per_token")
        return measured / predicted if predicted and measured else None

    def record(self) -> dict[str, object]:
        """Returns the row's fields in page.json."""
        plain = dataclasses.asdict(self)
        about = {"row": self.row.name, "published": plain["row"]["published"]}
        return about | {name: x for name, x in plain.items() if name not in PLANNED}


def place_path(folder: Path, row: StudyRow, where: str, what: str) -> Path:
    """Returns the path folder/ROW.PLACE.WHAT of a file about a row on a topology or HERE."""
    return folder / f"{row.name}.{where.replace(':', '_')}.{what}"


def measured(figures: RowFigures, folder: Path) -> None:
    """Sets the measured fields of `figures` from the files that its commands wrote to a folder."""
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
        for line in Lines(path, _Place):  # the last line is the newest
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
    """Sets the speed-up of beam searches to the target's greedy time / beam time, both alone."""
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
    """Yields a sentence for each pair of drafts of similar size, one with twice the layers."""
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
    """The results in an earlier folder of the same study."""

    folder: str
    rows: Mapping[str, Mapping]  # row -> its fields in page.json


def earlier(folder: str, study: Study) -> Earlier:
    """Returns the results of a study in a folder; raises UsageError if they are of another."""
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
    """Returns the JSON object in a file as a `kind`, None if there is no such file."""
    if not (file := Path(path)).is_file():
        return None
    try:
        return parsed(file.read_bytes(), kind)
    except ValueError as error:
        raise UsageError(f"{path} {error}; delete it, and the command writes it again") from error
