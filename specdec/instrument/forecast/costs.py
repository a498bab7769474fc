"""The seconds of a generation's parts: measured now, by `specdec bench`, or from a roofline."""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, TypeVar

from specdec.common import progress
from specdec.common.json_values import JsonObject, check_kind, parsed, record_of
from specdec.common.records import Lines, RecordsError
from specdec.common.timer import Clock, interleaved
from specdec.decoding.program import Program
from specdec.instrument.benchmark.file import Timing, record
from specdec.instrument.benchmark.parts import (
    LONGEST_SCAN,
    LONGEST_TURNS,
    PREFILL,
    PREFILL_ALONE,
    STEPS,
    Calls,
    Key,
    by_turns,
    key_of,
    name_of,
    prefills,
    scan,
    turn_of,
    turns,
)
from specdec.instrument.compile.hardware import LAYER_SECONDS, Call, Chip
from specdec.models.contract.model import Target
from specdec.plan import Plan, plain_call
from specdec.types import UNKNOWN_CALL, Part, PyTree, TargetCall

ROUNDS = 7  # of each part, in turns
WIDEST = 128  # tokens of a call of which a roofline is given


class _Record(TypedDict):
    calls: dict[str, float]
    prefill: float
    prefill_alone: float
    step: float
    source: str


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


class Costs(NamedTuple):
    """The costs of a plan's parts, in seconds."""

    # by `Calls`, of one model call in an iteration; other parts may be present
    calls: Mapping[Key, float]
    prefill: float  # before the first iteration, all models
    prefill_alone: float  # before the first iteration, target alone
    step: float  # a token of the target alone
    source: str  # where the costs come from, in words

    def record(self) -> Mapping[str, object]:
        """Returns plain values, for JSON."""
        calls = {name_of(key): seconds for key, seconds in self.calls.items()}
        return self._asdict() | {"calls": calls}

    @classmethod
    def of_record(cls, fields: JsonObject) -> Costs:
        """Returns the costs from the values of `record`."""
        check_kind(fields, _Record)
        calls = {key_of(name): seconds for name, seconds in fields["calls"].items()}
        return cls(**{**fields, "calls": calls})

    def iteration(self, plan: Plan, call: TargetCall = UNKNOWN_CALL) -> float | None:
        """Returns the seconds of one target call and its draft, None if a part is not known."""
        return self.of(plan.parts([call]))

    def of(self, parts: Iterable[Part]) -> float | None:
        """Returns the seconds of some calls, None if one is not known."""
        known = [(self.calls.get(Calls(role, width)), times) for role, width, times in parts]
        if any(one is None for one, _ in known):
            return None
        return sum(one * times for one, times in known if one is not None)


def of_bench(path: str) -> Costs:
    """Reads the lines of `specdec bench`, and returns medians."""
    seconds = defaultdict(list)
    for one in Lines(Path(path)).map(record, "bench"):
        if isinstance(one, Timing):
            seconds[one.part].append(one.seconds / one.steps)
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    return _costs(medians, path)


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
    return of_roofline(
        calls, chip, f"{path}, a roofline of {name}", one["assumed"]["layer_seconds"]
    )


def of_roofline(
    calls: Mapping[str, Call], chip: Chip, source: str, layer_seconds: float = LAYER_SECONDS
) -> Costs:
    """Returns the costs of a roofline, which has no prefill."""
    seconds: dict[Key, float] = {
        Calls(role, width): call.seconds(chip, width, layer_seconds)
        for role, call in calls.items()
        for width in range(1, WIDEST + 1)
    }
    source = f"{source} and {layer_seconds * 1e6:.0f} us for each layer, no prefill"
    return Costs(seconds, 0.0, 0.0, seconds[Calls("target", 1)], source)


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
    first = next(iter(plans.values()))
    parts = _Parts(tree_of, inputs, slots, min(first.max_length, LONGEST_SCAN))
    step = parts.call("alone", 1, alone)
    prefill = parts.prefill("alone", alone.target, alone)
    calls, prefills_of = {}, {}
    for name, plan in plans.items():
        models = plan.models().items()
        prefills_of[name] = [parts.prefill(role, model, plan) for role, model in models]
        calls[name] = {
            Calls(role, width): parts.call(role, width, plan)
            for role, width, _ in plan.parts(TargetCall.each(range(plan.longest_draft + 1)))
        }
    longest = max(plans, key=lambda name: plans[name].longest_draft)
    in_turn = {**calls[longest], **parts.turn(plans[longest])}
    seconds = _by_turns(parts.timed, clock)
    times = by_turns({part: seconds[key] for part, key in in_turn.items()})
    source = f"measured here, medians of {ROUNDS} turns"
    return {
        name: Costs(
            _in_iterations({part: seconds[key] for part, key in calls[name].items()}, times),
            sum(seconds[key] for key in prefills_of[name]),
            seconds[prefill],
            seconds[step],
            source,
        )
        for name in plans
    }


class _Parts:
    """The parts of several plans, each made once; methods return the key of one."""

    def __init__(
        self, tree_of: Callable[[str, Target], PyTree], inputs: PyTree, slots: int, steps: int
    ):
        self.timed: dict[Hashable, _Part] = {}
        self._tree_of, self._inputs, self._slots, self._steps = tree_of, inputs, slots, steps

    def prefill(self, role: str, model: Target, plan: Plan) -> tuple[Hashable, ...]:
        views = plan.drafter.views()
        key = role, model, 0, views.get(role)
        if key not in self.timed:
            program = Program(prefills({role: model}, self._slots, views))
            trees = {role: self._tree_of(role, model)}
            self.timed[key] = _Part(program, trees, self._inputs, 1)
        return key

    def call(self, role: str, width: int, plan: Plan) -> tuple[Hashable, ...]:
        """Returns the key of a call. A drafter's own call may read the parameters of all models."""
        alone = role == "alone"
        models = {"alone": plan.target} if alone else plan.models()
        own, of = plan.own_calls().get(role), role if alone else plan.holder(role)
        read = self.prefill(of, models[of], plan)
        key = role, width, read, plan if own else None
        if key not in self.timed:
            before = self.timed[read]
            trees = self._trees(models) if own else before.trees
            program = Program(scan(of, own or plain_call(role, models[of]), width, self._steps))
            self.timed[key] = _Part(program, trees, before.begun(), self._steps)
        return key

    def turn(self, plan: Plan) -> Mapping[Key, tuple[Hashable, ...]]:
        """Returns the key of the plan's interleaved calls, by these; {} if it has none."""
        if not (turn := turn_of(plan)):
            return {}
        models, begun = plan.models(), {}
        for role, model in models.items():
            begun |= self.timed[self.prefill(role, model, plan)].begun()
        steps = min(plan.max_length, LONGEST_TURNS)
        program = Program(turns(plan, turn, steps))
        self.timed[turn, plan] = _Part(program, self._trees(models), begun, steps)
        return {turn: (turn, plan)}

    def _trees(self, models: Mapping[str, Target]) -> dict[str, PyTree]:
        return {role: self._tree_of(role, model) for role, model in models.items()}


class _Part(NamedTuple):
    program: Program
    trees: Mapping[str, PyTree]
    argument: PyTree
    steps: int  # model calls in one run

    def begun(self) -> PyTree:
        """Returns the result of one run."""
        return self.program(self.trees, self.argument)

    def ready(self) -> Callable[[], object]:
        """Returns one run, compiled and warmed."""
        return functools.partial(
            self.program.warmed(self.trees, self.argument), self.trees, self.argument
        )


def _by_turns(timed: Mapping[Hashable, _Part], clock: Clock) -> dict[Hashable, float]:
    """Returns the seconds of a call of each part."""
    runs = {key: part.ready for key, part in timed.items()}
    with progress.bar("timing parts", (1 + ROUNDS) * len(timed), "part") as bar:
        found = interleaved(runs, ROUNDS, warm_ups=1, clock=clock, done=bar.update)
    return {key: statistics.median(found[key]) / part.steps for key, part in timed.items()}


def _in_iterations(calls: Mapping[Key, float], times: float) -> dict[Key, float]:
    """Returns the seconds in iterations, where drafts take `times` as long as on their own."""
    return {
        key: one * times if isinstance(key, Calls) and key.drafts else one
        for key, one in calls.items()
    }


def _costs(medians: Mapping[Key, float], path: str) -> Costs:
    prefill, alone = (medians.get(key) for key in (PREFILL, PREFILL_ALONE))
    step = next((medians[key] for key in STEPS if key in medians), None)
    if prefill is None or alone is None or step is None:
        raise RecordsError(
            f"{path} has no timings of parts; give the lines of `specdec bench`, or leave --costs "
            "out to measure here"
        )
    calls = _in_iterations(medians, by_turns(medians))
    return Costs(calls, prefill, alone, step, path)


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
