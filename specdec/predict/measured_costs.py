"""The seconds of a generation's parts: measured now, by `specdec bench`, or from a roofline."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, TypeVar

from specdec.common import progress
from specdec.common.json_values import JsonObject, check_kind, parsed, record_of
from specdec.common.records import Lines, RecordsError
from specdec.common.timer import Clock, interleaved
from specdec.measure import estimator
from specdec.measure.file import Timing, record
from specdec.measure.parts import (
    MEMORY,
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    STEPS,
    Key,
    Turn,
    by_turns,
)
from specdec.measure.workload import TimedPart, timed_parts
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.predict.costs import Calls, Costs
from specdec.predict.hardware import Call, Chip
from specdec.predict.roofline import roofline_costs
from specdec.types import PyTree

ROUNDS = 7  # of each part, in turns


class _Host(TypedDict):
    host: list[int]


class _Assumed(TypedDict):
    layer_seconds: float


class _Topology(TypedDict):
    topology: str
    calls: NotRequired[dict[str, dict[str, object]]]
    chip: NotRequired[_Host]
    assumed: NotRequired[_Assumed]


class _Compiled(TypedDict):
    topologies: list[_Topology]


def of_bench(path: str) -> Costs:
    """Reads the lines of `specdec bench`, and returns medians."""
    timings = (one for one in Lines(Path(path)).map(record, "bench") if isinstance(one, Timing))
    seconds = estimator.seconds_per_call(timings)
    if not ({PREFILL, PREFILL_ALONE} <= seconds.keys() and seconds.keys() & {*STEPS}):
        raise RecordsError(
            f"{path} has no timings of parts; give the lines of `specdec bench`, or leave --costs "
            "out to measure here"
        )
    return estimator.costs_of({key: statistics.median(x) for key, x in seconds.items()}, path)


def of_compile(path: str, topology: str | None) -> Costs:
    """Returns the costs of a roofline of `specdec compile`, which has no prefill."""
    topologies = _json(path).get("topologies", [])
    check_kind({"topologies": topologies}, _Compiled)
    found = {one["topology"]: one for one in topologies}
    name = topology or (next(iter(found)) if len(found) == 1 else None)
    if name not in found or not found[name].get("calls"):
        known = ", ".join(name for name, one in found.items() if one.get("calls"))
        raise RecordsError(
            f"{path} has no calls of topology {topology}; give one of {known or 'another file'}, "
            "--topology=NAME"
        )
    one = found[name]
    chip = record_of(Chip, one["chip"], host=tuple(one["chip"]["host"]))
    calls = {role: record_of(Call, call) for role, call in one["calls"].items()}
    source = f"{path}, a roofline of {name}"
    return roofline_costs(calls, chip, source, one["assumed"]["layer_seconds"])


Name = TypeVar("Name", bound=Hashable)


def measured(
    plans: Mapping[Name, Plan],
    alone: Plan,
    tree_of: Callable[[str, Target], PyTree],
    inputs: PyTree,
    *,
    clock: Clock = time.perf_counter,
) -> dict[Name, Costs]:
    """Measures the costs on this device: each part on its own, interleaved, medians."""
    slots = max(plan.capacity for plan in plans.values())
    longest = max(plans, key=lambda name: plans[name].longest_draft)
    timed: dict[Hashable, _Run] = {}
    keys: dict[Name, dict[Key, Hashable]] = {name: {} for name in plans}
    for name, plan in plans.items():
        for part, one in timed_parts(plan, alone, slots).items():
            if part in (MEMORY, MEMORY_READ) or (isinstance(part, Turn) and name != longest):
                continue
            key = keys[name][part] = _identity(plan, part)
            if key not in timed:
                models = _models(plan, alone, part)
                trees = {role: tree_of(role, model) for role, model in models.items()}
                source = None if one.source is None else timed[keys[name][one.source]]
                timed[key] = _Run(one, trees, source.result if source else inputs)
    medians = _medians(timed, clock)
    seconds = {
        name: {part: medians[key] for part, key in parts.items()} for name, parts in keys.items()
    }
    times, source = by_turns(seconds[longest]), f"measured here, medians of {ROUNDS} turns"
    return {name: estimator.costs_of(known, source, times) for name, known in seconds.items()}


def _models(plan: Plan, alone: Plan, part: Key) -> Mapping[str, Target]:
    """Returns the models that a part reads; a drafter's own call may read all of them."""
    if part == PREFILL_ALONE or (isinstance(part, Calls) and part.role == "alone"):
        return {"alone": alone.target}
    models = plan.models()
    if isinstance(part, Calls) and part.role not in plan.own_calls():
        return {plan.holder(part.role): models[plan.holder(part.role)]}
    return models


def _identity(plan: Plan, part: Key) -> Hashable:
    """Returns a key that plans share if the part is the same for them."""
    models, views = plan.models(), plan.drafter.views()
    if isinstance(part, Turn):
        return part, plan
    if isinstance(part, Calls) and part.role != "alone":
        role = plan.holder(part.role)
        return part, models[role], views.get(role), plan if part.role in plan.own_calls() else None
    return part, (*models.items(), *views.items()) if part == PREFILL else None


class _Run:
    """A part with its arguments."""

    def __init__(self, part: TimedPart, trees: Mapping[str, PyTree], argument: PyTree):
        self.steps, self._program, self._arguments = part.steps, part.program, (trees, argument)

    @functools.cached_property
    def result(self) -> PyTree:
        return self._program(*self._arguments)

    def ready(self) -> Callable[[], object]:
        """Returns one run, compiled and warmed."""
        return functools.partial(self._program.warmed(*self._arguments), *self._arguments)


def _medians(timed: Mapping[Hashable, _Run], clock: Clock) -> dict[Hashable, float]:
    """Returns the seconds of a call of each part, the median of interleaved runs."""
    runs = {key: part.ready for key, part in timed.items()}
    with progress.bar("timing parts", (1 + ROUNDS) * len(timed), "part") as bar:
        found = interleaved(runs, ROUNDS, warm_ups=1, clock=clock, done=bar.update)
    return {key: statistics.median(found[key]) / part.steps for key, part in timed.items()}


def read(path: str, topology: str | None) -> Costs:
    """Returns the costs in a file of `specdec bench`, `specdec compile` or `specdec tune`."""
    if not Path(path).is_file():
        raise RecordsError(f"--costs {path} does not exist; give a file of `specdec bench`")
    found = _json(path)
    try:
        if "topologies" in found:
            return of_compile(path, topology)
        if topology is not None:
            raise RecordsError(
                f"--topology is {topology} but {path} is not of `specdec compile`; leave it out"
            )
        return Costs.of_record(found) if found.keys() == set(Costs._fields) else of_bench(path)
    except RecordsError:
        raise
    except (TypeError, ValueError) as error:
        raise RecordsError(f"--costs {path} {error}; measure again") from error


def _json(path: str) -> JsonObject:
    """Returns the JSON object of a file, {} if it is none."""
    try:
        return parsed(Path(path).read_bytes())
    except ValueError:
        return {}
