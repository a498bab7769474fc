"""The programs that are timed: whole generations, and their parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jax.sharding import Mesh

from specdec.decoding.beam_plan import AnyPlan
from specdec.decoding.program import DecodeProgram, Program, batch_shapes
from specdec.measure import parts
from specdec.measure.parts import MEMORY, MEMORY_READ, PREFILL, PREFILL_ALONE, Calls, Key
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.types import Params, PyTree, TargetCall


class TimedPart(NamedTuple):
    """One part of a generation."""

    program: Program  # (trees, the source's result) -> a pytree
    source: Key | None  # the part whose result it takes; None: the inputs
    steps: int  # model calls in one run


class Workload(NamedTuple):
    """Programs of two plans, by name; parameters are trees by role, in each plan's layout."""

    plan: AnyPlan  # speculation
    alone: AnyPlan  # its target alone, in a layout of its own
    generations: Mapping[str, Program]  # (Params, keys [1], inputs [1, S]) -> the output
    parts: Mapping[Key, TimedPart]
    mesh: Mesh | None = None
    greedy: Plan | None = None  # of one text, next to a beam search

    @classmethod
    def of(
        cls, plan: AnyPlan, alone: AnyPlan, mesh: Mesh | None = None, greedy: Plan | None = None
    ) -> Workload:
        """Returns the programs of speculation and of its target alone, on the devices of a mesh."""
        plans = {"alone": alone, "speculative": plan} | ({"greedy": greedy} if greedy else {})
        programs = {mode: DecodeProgram(of_mode, mesh=mesh) for mode, of_mode in plans.items()}
        return cls(plan, alone, programs, timed_parts(plan, alone), mesh, greedy)

    def params(self, trees: Mapping[str, PyTree]) -> dict[str, Params]:
        """Returns the parameters of each generation."""
        params = {"alone": Params(trees["alone"]), "speculative": self.plan.params(trees)}
        if self.greedy:
            greedy = {role: trees[of_greedy(role)] for role in self.greedy.owned()}
            params["greedy"] = Params(**greedy)
        return params

    def check(self, trees: Mapping[str, PyTree], length: int) -> None:
        """Traces the generations; `trees` may be shapes."""
        batch = self._shapes(length)
        for mode, params in self.params(trees).items():
            self.generations[mode].lower(params, *batch)

    def _shapes(self, length: int) -> tuple[PyTree, PyTree]:
        """Returns the shapes of the key and of the inputs of a text."""
        return batch_shapes(self.plan.target, 1, length, self.mesh)

    def compile(self, trees: Mapping[str, PyTree], length: int) -> dict[Key, float]:
        """Compiles everything for a text of `length` tokens, and returns each program's seconds."""
        return {name: program.seconds for name, program, _ in self.compiled(trees, length)}

    def costs(self, trees: Mapping[str, PyTree], length: int) -> dict[Key, dict[str, float]]:
        """Returns the FLOPs and bytes of one call of each part, see `Program.costs`."""
        return {
            name: program.costs(*arguments)
            for name, program, arguments in self.compiled(trees, length)
            if name in self.parts
        }

    def compiled(
        self, trees: Mapping[str, PyTree], length: int
    ) -> Iterator[tuple[Key, Program, tuple[PyTree, ...]]]:
        """Yields each program, compiled, with the shapes of its arguments."""
        batch = self._shapes(length)
        for mode, params in self.params(trees).items():
            self.generations[mode].compile(params, *batch)
            yield mode, self.generations[mode], (params, *batch)
        results: dict[Key | None, PyTree] = {None: batch[1]}
        for name, part in self.parts.items():
            arguments = trees, results[part.source]
            results[name] = part.program.compile(*arguments).out_info
            yield name, part.program, arguments


def of_greedy(role: str) -> str:
    """Returns the name of a tree of greedy speculation, next to a beam search."""
    return f"greedy {role}"


def timed_parts(plan: AnyPlan, alone: AnyPlan, slots: int | None = None) -> dict[Key, TimedPart]:
    """Returns the parts that predictions need, for all draft lengths, in caches of `slots`."""
    (step,) = (Calls("alone", width) for _, width, _ in alone.parts())
    of_target, views = alone.call_of("target"), plan.drafter.views() if plan.drafter else {}

    def of_alone(trees: Mapping[str, PyTree], *arguments: PyTree) -> PyTree:
        return of_target({"target": trees["alone"]}, *arguments)

    timed: dict[Key, TimedPart] = {
        MEMORY: TimedPart(Program(parts.make_memory), None, 1),
        MEMORY_READ: TimedPart(Program(parts.read_memory), MEMORY, 1),
        PREFILL_ALONE: _prefill({"alone": alone.target}, slots or alone.capacity, {}),
        step: _calls("alone", of_alone, step.width, PREFILL_ALONE, alone.max_length),
        PREFILL: _prefill(plan.models(), slots or plan.capacity, views),
    }
    for role, width, _ in plan.parts(TargetCall.each(range(plan.longest_draft + 1))):
        timed[Calls(role, width)] = _calls(
            plan.holder(role), plan.call_of(role), width, PREFILL, plan.max_length
        )
    if turn := parts.turn_of(plan):
        steps = min(plan.max_length, parts.LONGEST_TURNS)
        timed[turn] = TimedPart(Program(parts.turns(plan, turn, steps)), PREFILL, steps)
    return timed


def _prefill(models: Mapping[str, Target], slots: int, views: parts.Views) -> TimedPart:
    run = functools.partial(parts.prefill, models=models, slots=slots, views=views)
    return TimedPart(Program(run), None, 1)


def _calls(role: str, call: Callable, width: int, prefill: str, max_length: int) -> TimedPart:
    steps = min(max_length, parts.LONGEST_SCAN)
    return TimedPart(Program(parts.scan(role, call, width, steps)), prefill, steps)
