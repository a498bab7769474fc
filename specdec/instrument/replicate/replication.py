"""A study from its plan to its page."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from specdec import checkpoints
from specdec.common.values import UsageError
from specdec.instrument.compile import Topology
from specdec.instrument.compile.by_shapes import Counted, Shape, count
from specdec.instrument.compile.roofline import predict
from specdec.instrument.replicate import results, steps, study_tables
from specdec.instrument.replicate.page import write_all
from specdec.instrument.replicate.results import PAPER, Found
from specdec.instrument.replicate.running import Journal
from specdec.instrument.replicate.steps import Choices, Step, Work
from specdec.instrument.replicate.study import Study
from specdec.instrument.replicate.study_tables import Table
from specdec.models.contract.model import Model
from specdec.plan import Plan

COPIES = 2.5  # of parameters, that a benchmark holds in the layouts of its programs
READ = 2**28  # bytes with which this machine's memory is timed


class Described(NamedTuple):
    """A run before any device is used: its plan, and the longest inputs in tokens."""

    plan: Plan
    inputs: int


# The run of some flags, with its models resized to presets by role.
Describe: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], Described]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A row, its figures before it is measured, and the commands that measure it.

    Attributes:
      found: the figures.
      counted: the bytes of its run on one device; None if it cannot be run.
      steps: its commands.
      minutes: that they take, roughly.
    """

    found: Found
    counted: Counted | None = None
    steps: Sequence[Step] = ()
    minutes: float = 0.0


class Replication:
    """A study that is planned, run and shown.

    Args:
      study: the study.
      choices: the user's.
      journal: runs commands, and knows those that have ended.
      describe: see `Describe`; raises UsageError.
    """

    def __init__(self, study: Study, choices: Choices, journal: Journal, describe: Describe):
        self._study, self._choices, self._journal = study, choices, journal
        self._describe = describe

    def plan(self) -> list[Planned]:
        """Returns the rows in order; compiles for the topologies if libtpu is installed."""
        return [
            self._planned(steps.work_of(self._study, row, self._choices))
            for row in self._study.rows
        ]

    def run(self, planned: Sequence[Planned]) -> Iterator[str]:
        """Runs the commands of all rows, and yields what is done, one line each.

        The page is written whenever a row is done.
        """
        for one in planned:
            for step in one.steps:
                if not self._needed(one, step):
                    continue
                yield f"{one.found.row.name}: {step.name}"
                if not self._journal.run(step):
                    one.found.failures[step.name] = self._journal.failure(step)
            if one.steps:
                self.show(planned)

    def show(self, planned: Sequence[Planned], compare: str | None = None) -> None:
        """Writes the page of everything that is known."""
        rows = [self._shown(one) for one in planned]
        results.relative_to_greedy(rows)
        write_all(self._study, rows, self._choices.folder, Path(compare) if compare else None)

    def _needed(self, one: Planned, step: Step) -> bool:
        """Returns whether all that a step reads has been made."""
        failed = {name.partition(" ")[0] for name in one.found.failures}
        read = {"acceptance", "bench"} if step.name.startswith("forecast") else set()
        return not failed & {"grow", *read}

    def _shown(self, one: Planned) -> Found:
        found = dataclasses.replace(
            one.found, measured={}, alphas={}, identical="", predicted=list(one.found.predicted)
        )
        done = [step for step in one.steps if self._journal.has(step)]
        found.commands = [shlex.join(["specdec", *step.argv]) for step in one.steps]
        return results.measured(found, self._choices.folder) if done else found

    def _planned(self, work: Work) -> Planned:
        found = Found(work)
        compilation = steps.compilation(self._study, work, self._choices)
        if compilation is not None:
            self._predict(found, compilation)
        if not work.flags:
            return Planned(found)
        try:
            described = self._describe(*self._embedded(work))
        except UsageError as error:
            found.failures["run"] = str(error)
            return Planned(found)
        return self._runnable(work, found, described)

    def _embedded(self, work: Work) -> tuple[Sequence[str], Mapping[str, str]]:
        """Returns the flags of a row's run before its models have grown, and what they grow to."""
        if not work.grown or work.row.grown is None:
            return work.flags, {}
        sizes = {role: name.partition("-")[2] for name, (role, _) in work.grown.items()}
        return (*work.row.grown.run, *self._choices.flags), sizes

    def _runnable(self, work: Work, found: Found, described: Described) -> Planned:
        plan = described.plan
        counted = count(plan, Shape(1, plan.capacity, described.inputs), 1)
        if said := _refused(work, plan, counted):
            found.failures["run"] = said
            return Planned(found)
        compiled = [name for name, chip in found.chips.items() if chip.cost_ratio and not chip.said]
        growth = list(steps.growth(work))
        wanted = [*growth, *steps.measurement(self._study, work, self._choices, plan, compiled)]
        left = [step for step in wanted if not self._journal.has(step)]
        texts = self._choices.limit or self._study.limit or 32
        minutes = steps.minutes(left, counted, plan.max_length, texts, bandwidth())
        return Planned(found, counted, wanted, minutes)

    def _predict(self, found: Found, compilation: Step) -> None:
        """Adds the memory and the predictions of topologies, compiled if that is possible."""
        row, choices = found.row, self._choices
        try:
            described = self._describe(found.work.shape, {})
        except UsageError as error:
            found.failures["prediction"] = str(error)
            return
        plan = described.plan
        alpha = row.published.get("alpha", self._study.alpha)
        found.draft = _draft(plan)
        if importlib.util.find_spec("libtpu") is not None:
            if not self._journal.has(compilation):
                print(f"{row.name}: compile", file=sys.stderr, flush=True)
            if self._journal.run(compilation):
                results.compiled(found, choices.folder, plan.longest_draft, alpha)
                return
            found.failures["compile"] = self._journal.failure(compilation)
        for name in choices.topologies:
            topology = Topology.parse(name)
            shape = Shape(1, plan.capacity, described.inputs)
            counted = count(plan, shape, topology.size)
            rates = {} if alpha is None else {f"{alpha:g}": alpha}
            _, made = predict(topology.chip, plan, counted.calls, rates, plan.longest_draft)
            size = counted.parameters + counted.caches
            figures = dataclasses.asdict(made), plan.longest_draft, alpha
            results.from_shapes(found, name, size, topology.chip.memory, *figures)


def chosen(study: Study, patterns: Sequence[str]) -> Study:
    """Returns a study with some of its rows.

    Args:
      study: the study.
      patterns: names of rows, in which * and ? stand for others; nothing for all rows.

    Raises:
      UsageError: no row has such a name.
    """
    names = [row.name for row in study.rows]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UsageError(f"--rows: no row is named {pattern}; give some of {', '.join(names)}")
    kept = [name for pattern in patterns for name in fnmatch.filter(names, pattern)]
    rows = [row for row in study.rows if not patterns or row.name in kept]
    return dataclasses.replace(study, rows=rows)


def overview(study: Study, planned: Sequence[Planned]) -> Iterator[str]:
    """Yields the plan, for people: what each row lacks, needs and is predicted to be.

    Args:
      study: the study.
      planned: its rows.
    """
    places = list(dict.fromkeys(name for one in planned for name in one.found.chips))
    header = ["row", "lacks", "published", "GB here", "minutes"]
    for where in places:
        header += [f"{where}, one device", f"{where}, predicted"]
    lines = []
    for one in planned:
        found, row = one.found, one.found.row
        lacks = [text.partition(":")[0] for text in found.work.missing]
        if found.work.marks:
            lacks.append(f"runs {' '.join(found.work.marks)}")
        lacks += [f"{name}: {said}" for name, said in found.failures.items()]
        speedup = row.published.get("speedup")
        cells = [row.name, ", ".join(lacks) or "nothing", f"{speedup:g}" if speedup else ""]
        counted = one.counted
        cells.append(f"{(counted.parameters + counted.caches) / 1e9:.1f}" if counted else "")
        cells.append(f"{one.minutes:.0f}" if one.steps else "")
        for where in places:
            cells.append(study_tables.memory_of(found.chips.get(where)))
            predicted = found.speedup(where, PAPER)
            cells.append("" if predicted is None else f"{predicted:.2f}")
        lines.append(cells)
    yield study.title
    yield from ("", study_tables.markdown(Table("", header, lines).filled()), "")
    lacking = dict.fromkeys(text for one in planned for text in one.found.work.missing)
    if lacking:
        yield "Give what is missing with --use=NAME=PATH:"
        yield from (f"  {text}" for text in lacking)
    if any(one.steps for one in planned):
        yield "Minutes are rough: each target call reads its parameters from this machine's memory."


@functools.cache
def bandwidth() -> float:
    """Returns the bytes/s with which this machine copies its memory, the best of three."""
    numbers = np.ones(READ // 8)
    return max(READ / _seconds(numbers.sum) for _ in range(3))


def _seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def _draft(plan: Plan) -> results.Draft | None:
    drafts = (model for role, model in plan.models().items() if role != "target")
    models = [model for model in drafts if isinstance(model, Model)]
    if not models:
        return None
    parameters = sum(checkpoints.parameter_count(model) for model in models)
    return results.Draft(sum(model.num_layers for model in models), parameters)


def _refused(work: Work, plan: Plan, counted: Counted) -> str:
    """Returns why a row cannot be measured here, '' if it can."""
    counts = {role: checkpoints.parameter_count(x) for role, x in plan.models().items()}
    drafts = [size for role, size in counts.items() if role != "target"]
    if work.grown and drafts and max(drafts) >= counts["target"]:
        return "its draft is as large as the target"
    needs = COPIES * counted.parameters + counted.caches
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needs > has:
        return f"needs {needs / 1e9:.0f} GB of memory, and this machine has {has / 1e9:.0f}"
    return ""
