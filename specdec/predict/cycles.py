"""The compiler's own estimate of each program: cycles and fusions.

A TPU's compiler writes the cycles that it expects next to most instructions of an optimised
program, and orders the program by them. A sum of cycles adds up work that may overlap. So it is
compared with other sums, and not with a clock. Backends that state no cycles have no estimate.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from specdec.plan import Plan
from specdec.predict import hlo
from specdec.predict.compilation import Compilation, part_name
from specdec.predict.costs import Calls, Costs

_LAYER = re.compile(r"/decoder/layers_(\d+)/")


@dataclasses.dataclass(frozen=True)
class ProgramCycles:
    """The compiler's estimate of one program; the body of a loop counts once."""

    cycles: int  # the sum over all instructions
    fusions: int  # the number of fusions
    # the mean number of fusions in a decoder layer; None if no instruction is one of a layer
    fusions_per_layer: float | None
    # the number of kernels written in Pallas, whose cycles the compiler does not state
    kernels: int = 0


@dataclasses.dataclass(frozen=True)
class CompilerEstimate:
    """The compiler's estimate of a plan's parts, and the costs that follow from their cycles."""

    parts: Mapping[str, ProgramCycles]  # the estimate of each part, by its name
    # c, the cycles of a draft token divided by those of a target call on one token. None if a call
    # has no estimate or a kernel without cycles, or nothing is drafted.
    cost_ratio: float | None = None
    verify_cost: float | None = None  # v(gamma), for the plan's longest draft
    # {alpha: S} at the plan's longest draft, if nothing but these cycles takes time
    speedups: Mapping[str, float] = dataclasses.field(default_factory=dict)


def of_module(module: hlo.Module) -> ProgramCycles:
    """Returns the compiler's estimate of a program."""
    fusions = [x for x in module.operations if x.opcode == "fusion"]
    layers = [match[1] for x in fusions if (match := _LAYER.search(x.scope))]
    per_layer = round(len(layers) / len(set(layers)), 1) if layers else None
    cycles = sum(x.cycles for x in (*module.operations, *module.moves))
    calls = (x for x in module.operations if x.opcode == "custom-call")
    kernels = sum(call.scope.endswith("/pallas_call") for call in calls)
    return ProgramCycles(cycles, len(fusions), per_layer, kernels)


def estimate(compilation: Compilation, alphas: Mapping[str, float]) -> CompilerEstimate | None:
    """Returns the compiler's estimate of a plan's parts; None if it states no cycles."""
    modules = {name: part.module for name, part in compilation.parts.items()}
    parts = {name: of_module(module) for name, module in modules.items() if module}
    if not any(part.cycles for part in parts.values()):
        return None
    plan = compilation.plan
    if not (isinstance(plan, Plan) and plan.drafts):
        return CompilerEstimate(parts)
    calls, alone = plan.parts(), plan.alone().parts()
    names = {Calls(role, width): part_name(role, width) for role, width, _ in (*calls, *alone)}
    if any(name not in parts or parts[name].kernels for name in names.values()):
        return CompilerEstimate(parts)  # one of them does not fit, or its cycles are not all known
    costs = Costs({key: float(parts[name].cycles) for key, name in names.items()})
    step = costs.iteration(alone).seconds
    iteration = costs._replace(step=step).iteration(calls, plan.longest_draft)
    speedups = {label: iteration.speedup(alpha) for label, alpha in alphas.items()}
    return CompilerEstimate(parts, iteration.cost_ratio, iteration.verify_cost, speedups)
