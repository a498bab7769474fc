"""Runs a study: plans its rows, runs their commands, and writes its page."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.util
import itertools
import os
import sys
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeAlias, TypedDict

import numpy as np
from msgspec import Meta

from specdec import checkpoints
from specdec.common.records import as_json, write
from specdec.common.tables import number
from specdec.common.values import UsageError, one_line
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.predict.hardware import Topology
from specdec.predict.roofline import Counted, Shape, count, predict, roofline_costs
from specdec.report.replicate import results, steps, study_tables
from specdec.report.replicate.page import write_all
from specdec.report.replicate.results import Earlier, Place, RowFigures, Step, load, place_path
from specdec.report.replicate.steps import Choices, Journal
from specdec.report.replicate.study import Study
from specdec.report.replicate.study_tables import Cell

COPIES = 2.5  # of the parameters that a benchmark holds, because programs need several layouts
READ = 2**28  # bytes that are read to time this machine's memory


class Described(NamedTuple):
    """A run that was not started."""

    plan: Plan
    inputs: int  # tokens of the longest input

    def counted(self, devices: int) -> Counted:
        """Returns the memory and work of the run with batch size 1, divided over devices."""
        return count(self.plan, Shape(1, self.plan.capacity, self.inputs), devices)


# Maps the flags of a run, and role -> preset for models to resize, to the run.
Describe: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], Described]


class Replication:
    """A study with the user's choices and the journal of its commands, to plan, run and show.

    `describe` maps flags to a run."""

    def __init__(self, study: Study, choices: Choices, journal: Journal, describe: Describe):
        self._study, self._choices, self._journal = study, choices, journal
        self._describe = describe

    def plan(self) -> list[RowFigures]:
        """Returns the rows with predictions and commands; compiles them if libtpu is installed."""
        rows = [steps.figures_of(self._study, row, self._choices) for row in self._study.rows]
        runs = [self._runs_of(figures) for figures in rows]
        for figures, (shape, run) in zip(rows, runs, strict=True):
            if shape is not None:
                self._predict(figures, shape)
            if run is not None:
                self._prepare(figures, run)
        return rows

    def run(self, rows: Sequence[RowFigures]) -> Iterator[str]:
        """Runs all commands, yields "ROW: COMMAND" before each, and writes the page after a row."""
        for figures in rows:
            remaining = [step for step in figures.steps if not self._journal.has(step)]
            for step in remaining:
                if _has_inputs(figures, step):
                    yield f"{figures.row.name}: {step.name}"
                    if not self._journal.run(step):
                        figures.failures[step.name] = self._journal.failure(step)
            if remaining and figures is not rows[-1]:
                self.show(rows)

    def show(self, rows: Sequence[RowFigures], earlier: Earlier | None = None) -> list[str]:
        """Writes the page with all results so far, and returns the names of its files."""
        for figures in rows:
            if any(map(self._journal.has, figures.steps)):
                results.measured(figures, self._choices.folder)
        results.relative_to_greedy(rows)
        return write_all(self._study, rows, self._choices.folder, earlier)

    def _runs_of(self, figures: RowFigures) -> tuple[Described | None, Described | None]:
        """Returns the run to compile and the run to measure; None for one that is not wanted."""
        row = figures.row
        with one_line(f"{self._study.name}, row {row.name}: "):
            wanted = row.compiled and self._choices.topologies
            shape = self._describe(row.compiled, {}) if wanted else None
            if shape and row.shape is None and not figures.flags:
                self._describe((*row.run, *self._choices.flags), {})  # for mistakes in the flags
            flags = figures.flags
            if figures.grown and row.grown is not None:  # the grown checkpoints may not exist yet
                flags = (*row.grown.run, *self._choices.flags)
            return shape, self._describe(flags, figures.grown) if flags else None

    def _prepare(self, figures: RowFigures, run: Described) -> None:
        """Adds the commands, bytes and minutes of a row, or why this machine cannot measure it."""
        counted = run.counted(1)
        if reason := _refused(figures, run.plan, counted):
            figures.failures["run"] = reason
            return
        known = [name for name, on_device in figures.places.items() if on_device.cost_ratio]
        commands = steps.measurement(self._study, figures, self._choices, run.plan, known)
        figures.steps = [*steps.growth(figures, self._choices), *commands]
        figures.bytes = counted.parameters + counted.caches
        remaining = [step for step in figures.steps if not self._journal.has(step)]
        texts = self._choices.limit or self._study.limit or 32
        figures.minutes = steps.minutes(remaining, counted, run.plan.max_length, texts, bandwidth())

    def _predict(self, figures: RowFigures, run: Described) -> None:
        plan, alpha = run.plan, self._study.rate(figures.row)
        figures.layers, figures.parameters = _draft(plan)
        for topology in map(Topology.parse, self._choices.topologies):
            counted, chip = run.counted(topology.size), topology.chip
            size = counted.parameters + counted.caches
            on_device = figures.places[topology.name] = Place(size, chip.memory, results.BY_SHAPES)
            if on_device.memory > on_device.limit or not self._compiles(figures, topology.name):
                continue
            rates = {} if alpha is None else {"": alpha}
            _, prediction = predict(chip, plan, counted.calls, rates, plan.longest_draft)
            on_device.cost_ratio = prediction.cost_ratio
            on_device.pays_from = prediction.iteration / prediction.target
            if (tokens := figures.row.published.tokens_per_call) is not None:
                on_device.given = tokens / on_device.pays_from
            elif alpha is not None:
                on_device.given = prediction.speedups[""][-1]
            path = place_path(self._choices.folder, figures.row, topology.name, "costs.json")
            costs = roofline_costs(
                counted.calls, chip, f"from shapes, a roofline of {topology.name}"
            )
            write(path, as_json(costs.record()))

    def _compiles(self, figures: RowFigures, topology: str) -> bool:
        """Replaces a row's memory by the compiler's if libtpu is installed; returns if it fits."""
        step = steps.compilation(figures.row, self._choices, topology)
        if not has_compiler():
            return True
        if not self._journal.has(step):
            print(f"{figures.row.name}: {step.name}", file=sys.stderr, flush=True)
        if not self._journal.run(step):
            figures.failures[step.name] = self._journal.failure(step)
            return True
        path = place_path(self._choices.folder, figures.row, topology, "compile.json")
        if (compiled := load(path, _Compiled)) is None:
            raise UsageError(f"{path} was removed; run `specdec replicate` again")
        (topology_record,) = compiled["topologies"]
        on_device, memory = figures.places[topology], topology_record["memory"]
        on_device.memory = memory.get("total", on_device.memory)
        on_device.said = memory.get("too_large", "")
        return not on_device.said


class _Memory(TypedDict, total=False):
    total: int
    too_large: str


class _Topology(TypedDict):
    memory: _Memory


class _Compiled(TypedDict):
    topologies: Annotated[list[_Topology], Meta(min_length=1, max_length=1)]


def chosen(study: Study, patterns: Sequence[str]) -> Study:
    """Returns the study with the rows whose names match a pattern; UsageError if one has none."""
    names = [row.name for row in study.rows]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UsageError(f"--rows: no row is named {pattern}; give some of {', '.join(names)}")
    chosen_names = {name for pattern in patterns or "*" for name in fnmatch.filter(names, pattern)}
    return dataclasses.replace(study, rows=[row for row in study.rows if row.name in chosen_names])


def overview(study: Study, rows: Sequence[RowFigures]) -> Iterator[str]:
    """Yields the printed plan: what each row lacks, its memory, minutes and predicted speed-up."""

    def lacks(figures: RowFigures) -> str:
        words = [text.partition(":")[0] for text in figures.missing]
        if figures.marks:
            words.append(f"runs {' '.join(figures.marks)}")
        return ", ".join(filter(None, [*words, figures.failed()])) or "nothing"

    columns: dict[str, Cell] = {
        "lacks": lacks,
        "published": lambda figures: number(figures.row.published.speedup, "g"),
        "GB here": lambda figures: number(figures.bytes and figures.bytes / 1e9, ".1f"),
        "minutes": lambda figures: number(figures.minutes, ".0f"),
    }
    for where in study_tables.topologies(rows):
        columns[f"{where}, one device"] = functools.partial(study_tables.memory_at, where)
        columns[f"{where}, predicted"] = study_tables.at(where, "given")
    plan = study_tables.of_rows("", rows, columns)
    yield from (study.title, "", plan.markdown(), "")
    places = itertools.chain.from_iterable(figures.places.values() for figures in rows)
    if any(on_device.said == results.BY_SHAPES for on_device in places):
        yield study_tables.FROM_SHAPES
    if lacking := dict.fromkeys(text for figures in rows for text in figures.missing):
        yield "Give what is missing with --use=NAME=PATH:"
        yield from (f"  {text}" for text in lacking)
    if any(figures.steps for figures in rows):
        yield "Minutes are estimates: a target call takes the time to read its parameters here."


def has_compiler() -> bool:
    return importlib.util.find_spec("libtpu") is not None


@functools.cache
def bandwidth() -> float:
    """Returns the bytes/s at which this machine reads its memory, the best of three."""
    return READ / min(timeit.repeat(np.ones(READ // 8).sum, repeat=3, number=1))


def _has_inputs(figures: RowFigures, step: Step) -> bool:
    """Returns whether no command failed whose files the step reads."""
    failed = {name.partition(" ")[0] for name in figures.failures}
    read = {"acceptance", "bench"} if step.name.startswith("forecast") else set()
    return not failed & {"grow", *read}


def _draft(plan: Plan) -> tuple[int, int]:
    models = [model for role, model in plan.models().items() if role != "target"]
    drafts = [model for model in models if isinstance(model, Model)]
    return sum(model.num_layers for model in drafts), sum(map(checkpoints.parameter_count, drafts))


def _refused(figures: RowFigures, plan: Plan, counted: Counted) -> str:
    """Returns the reason why this machine cannot measure a row, '' if it can."""
    counts = {role: checkpoints.parameter_count(x) for role, x in plan.models().items()}
    drafts = [size for role, size in counts.items() if role != "target"]
    if figures.grown and drafts and max(drafts) >= counts["target"]:
        return "its draft is as large as the target"
    needs = COPIES * counted.parameters + counted.caches
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needs > has:
        return f"needs {needs / 1e9:.0f} GB of memory, and this machine has {has / 1e9:.0f}"
    return ""
