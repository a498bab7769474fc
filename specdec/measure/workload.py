"""The programs that are timed: whole generations, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jax.sharding import Mesh

from specdec.decoding.beam_plan import AnyPlan
from specdec.decoding.program import DecodeProgram, Program, batch_shapes
from specdec.measure import parts
from specdec.measure.parts import (
    LONGEST_SCAN,
    LONGEST_TURNS,
    MEMORY,
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    Calls,
    Key,
)
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.types import Params, PyTree, TargetCall


class TimedPart(NamedTuple):
    """One part of a generation."""

    program: Program  # (trees, what the source gave) -> a pytree
    source: Key | None  # the part whose result it is given; None: the inputs
    steps: int  # model calls in one run


class Workload(NamedTuple):
    """Programs of two plans, by name; each part comes after its source.

    Parameters are trees by role: "alone", those that the plan owns, and `of_greedy` those of greedy
    speculation, whose layouts are its own.
    """

    plan: AnyPlan  # speculation
    alone: AnyPlan  # its target alone, in a layout of its own
    generations: Mapping[str, Program]  # (Params, keys [1], inputs [1, S]) -> the output
    parts: Mapping[Key, TimedPart]
    mesh: Mesh | None = None
    greedy: Plan | None = None  # of one text, next to a beam search

    @classmethod
    def of(
        cls,
        plan: AnyPlan,
        alone: AnyPlan,
        mesh: Mesh | None = None,
        greedy: Plan | None = None,
    ) -> Workload:
        """Returns the programs of speculation and of its target alone, on the devices of a mesh."""
        modes = {"alone": alone, "speculative": plan} | ({"greedy": greedy} if greedy else {})
        programs = {mode: DecodeProgram(one, mesh=mesh) for mode, one in modes.items()}
        return cls(plan, alone, programs, timed_parts(plan, alone), mesh, greedy)

    def params(self, trees: Mapping[str, PyTree]) -> dict[str, Params]:
        """Returns the parameters of each generation."""
        found = {"alone": Params(trees["alone"]), "speculative": self.plan.params(trees)}
        if self.greedy:
            own = {role: trees[of_greedy(role)] for role in self.greedy.owned()}
            found["greedy"] = Params(**own)
        return found

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
            name: program.costs(*given)
            for name, program, given in self.compiled(trees, length)
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
        given: dict[Key | None, PyTree] = {None: batch[1]}
        for name, part in self.parts.items():
            arguments = trees, given[part.source]
            given[name] = part.program.compile(*arguments).out_info
            yield name, part.program, arguments


def of_greedy(role: str) -> str:
    """Returns the name of a tree of greedy speculation, next to a beam search."""
    return f"greedy {role}"


def timed_parts(plan: AnyPlan, alone: AnyPlan, slots: int | None = None) -> dict[Key, TimedPart]:
    """Returns the parts that predictions are made of, for all possible draft lengths.

    Caches have `slots`, or the plans' own capacity.
    """
    (step,) = (Calls("alone", width) for _, width, _ in alone.parts())
    of_target, views = alone.call_of("target"), plan.drafter.views() if plan.drafter else {}

    def of_alone(trees: Mapping[str, PyTree], *given: PyTree) -> PyTree:
        return of_target({"target": trees["alone"]}, *given)

    found: dict[Key, TimedPart] = {
        MEMORY: TimedPart(Program(parts.make_memory), None, 1),
        MEMORY_READ: TimedPart(Program(parts.read_memory), MEMORY, 1),
        PREFILL_ALONE: _prefill({"alone": alone.target}, slots or alone.capacity),
        step: _calls("alone", of_alone, step.width, PREFILL_ALONE, alone.max_length),
        PREFILL: _prefill(plan.models(), slots or plan.capacity, views),
    }
    for role, width, _ in plan.parts(TargetCall.each(range(plan.longest_draft + 1))):
        given = plan.holder(role), plan.call_of(role), width, PREFILL, plan.max_length
        found[Calls(role, width)] = _calls(*given)
    if turn := parts.turn_of(plan):
        steps = min(plan.max_length, LONGEST_TURNS)
        found[turn] = TimedPart(Program(parts.turns(plan, turn, steps)), PREFILL, steps)
    return found


def _prefill(
    models: Mapping[str, Target], slots: int, views: Mapping[str, Callable] = {}
) -> TimedPart:
    return TimedPart(Program(parts.prefills(models, slots, views)), None, 1)


def _calls(role: str, call: Callable, width: int, prefill: str, max_length: int) -> TimedPart:
    steps = min(max_length, LONGEST_SCAN)
    return TimedPart(Program(parts.scan(role, call, width, steps)), prefill, steps)
