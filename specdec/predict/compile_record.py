"""The JSON record that `specdec compile` writes for each topology.

It includes the compiler's estimate of each program: a TPU's compiler annotates most instructions of
an optimised program with expected cycles. A sum of cycles ignores that work may overlap, so it is
only compared with other sums, not with measured times. Other backends state no cycles, and have no
estimate.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.plan import Plan
from specdec.predict import hlo
from specdec.predict.compilation import Compilation, Compiled, DeviceMemory, part_name
from specdec.predict.costs import Calls, Costs
from specdec.predict.hardware import HOP_SECONDS, LAYER_SECONDS, Call, Chip, Topology
from specdec.predict.roofline import (
    BeamPrediction,
    Exit,
    RooflinePrediction,
    exits,
    predict,
    predict_beams,
)

_LAYER = re.compile(r"/decoder/layers_(\d+)/")


@dataclasses.dataclass(frozen=True)
class ProgramCycles:
    """The compiler's estimate of one program; the body of a loop counts once."""

    cycles: int  # the sum over all instructions
    fusions: int  # the number of fusions
    # the mean number of fusions per decoder layer; None if no instruction belongs to a layer
    fusions_per_layer: float | None
    # the number of Pallas kernels, for which the compiler states no cycles
    kernels: int = 0


@dataclasses.dataclass(frozen=True)
class CompilerEstimate:
    """The compiler's estimate of a plan's model calls, and the speed-ups predicted from it."""

    parts: Mapping[str, ProgramCycles]  # part name -> its program's estimate
    # c, the cycles of a draft token / cycles of a target call on one token. None without a drafter,
    # or if the cycles of a call are not known.
    cost_ratio: float | None = None
    verify_cost: float | None = None  # v(gamma), for the plan's longest draft
    # label of an alpha -> the speed-up with the longest draft, if only these cycles took time
    speedups: Mapping[str, float] = dataclasses.field(default_factory=dict)


def of_module(module: hlo.Module) -> ProgramCycles:
    """Returns the compiler's estimate of one program."""
    fusions = [x for x in module.operations if x.opcode == "fusion"]
    layers = [match[1] for x in fusions if (match := _LAYER.search(x.scope))]
    per_layer = round(len(layers) / len(set(layers)), 1) if layers else None
    cycles = sum(x.cycles for x in (*module.operations, *module.moves))
    calls = (x for x in module.operations if x.opcode == "custom-call")
    kernels = sum(call.scope.endswith("/pallas_call") for call in calls)
    return ProgramCycles(cycles, len(fusions), per_layer, kernels)


def estimate(compilation: Compilation, alphas: Mapping[str, float]) -> CompilerEstimate | None:
    """Returns the compiler's estimate; None without cycles. `alphas`: label -> acceptance rate."""
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
        return CompilerEstimate(parts)  # a program does not fit, or some cycles are not known
    costs = Costs({key: float(parts[name].cycles) for key, name in names.items()})
    step = costs.iteration(alone).seconds
    iteration = costs._replace(step=step).iteration(calls, plan.longest_draft)
    speedups = {label: iteration.speedup(alpha) for label, alpha in alphas.items()}
    return CompilerEstimate(parts, iteration.cost_ratio, iteration.verify_cost, speedups)


PREDICTIONS = {"roofline": "roofline", "with_layers": "with layers"}  # field -> printed name


R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class CountAndBytes:
    count: int
    bytes: float


@dataclasses.dataclass(frozen=True)
class LargestArray:
    shape: str
    bytes: float


# path of loops ('' outside of loops) -> kind of instruction -> number and bytes
ByLoop: TypeAlias = Mapping[str, Mapping[str, CountAndBytes]]


@dataclasses.dataclass(frozen=True)
class ProgramContents:
    """A program's memory, and its instructions by the path of the loop in which they run."""

    memory: DeviceMemory | None = None
    collectives: ByLoop = dataclasses.field(default_factory=dict)
    copies: ByLoop = dataclasses.field(default_factory=dict)  # without copies inside fusions
    operations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    top_k: ByLoop = dataclasses.field(default_factory=dict)
    largest: Mapping[str, LargestArray] = dataclasses.field(default_factory=dict)  # in each loop
    host_transfers: int = 0
    dynamic_shapes: int = 0
    sparse_core: ByLoop = dataclasses.field(default_factory=dict)
    loops: tuple[hlo.Loop, ...] = ()
    flops: float = 0.0
    accessed: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramMemory:
    """The bytes that a program needs on one device; the message `too_large` if it does not fit."""

    parameters: float = 0
    caches: float | None = None  # included in the temporaries of a decode program
    optimizer: float | None = None  # this and the next four fields only for a training update
    gradients: float | None = None
    target: float | None = None
    target_cache: float | None = None
    target_logits: float | None = None
    limit: float = 0
    fits: bool = False
    too_large: str | None = None
    needed: float | None = None
    arguments: float | None = None
    outputs: float | None = None
    temporaries: float | None = None
    code: float | None = None
    donated: float | None = None
    total: float | None = None
    left: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicesRecord:
    """The figures, per device, of programs compiled for a topology."""

    topology: str
    devices: int
    mesh: Mapping[str, int]
    chip: Chip
    memory: ProgramMemory
    compile_seconds: Mapping[str, float]
    programs: Mapping[str, ProgramContents] = dataclasses.field(default_factory=dict)
    dtype: str = ""
    assumed: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """Returns name -> value of the fields that are not None, as values that JSON can hold."""
        fields = dataclasses.asdict(self)
        return _known(fields | {"memory": _known(fields["memory"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyRecord(DevicesRecord):
    """The figures of a plan compiled for a topology; fields after `outputs` may be missing."""

    rows: int
    inputs: int = 0
    outputs: int = 0
    gamma: int | None = None
    paths: int | None = None
    beams: int | None = None
    draft_beams: int | None = None
    draft_steps: int | None = None
    calls: Mapping[str, Call] = dataclasses.field(default_factory=dict)
    compiler: CompilerEstimate | None = None
    alphas: Mapping[str, float] | None = None
    roofline: RooflinePrediction | None = None
    with_layers: RooflinePrediction | None = None
    exits: Sequence[Exit] | None = None
    beams_predicted: Sequence[BeamPrediction] | None = None


def read(fields: Mapping[str, object], kind: type[R]) -> R:
    """Returns a record of class `kind` from its JSON fields, also from versions without int8."""
    chip = fields["chip"]
    assert isinstance(chip, Mapping)
    return msgspec.convert({**fields, "chip": {"int8": chip["flops"], **chip}}, kind)


def _known(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def record(
    topology: Topology, compilation: Compilation, alphas: Mapping[str, float]
) -> dict[str, object]:
    """Returns the JSON fields of a compiled plan; `alphas` maps a label to an acceptance rate."""
    plan = compilation.plan
    sizes = {"parameters": compilation.parameter_bytes, "caches": compilation.cache_bytes}
    plain = TopologyRecord(
        **of_devices(topology, compilation.mesh, *compilation.programs),
        memory=memory_of(sizes, compilation.program, topology),
        dtype=plan.target.dtype,
        rows=compilation.rows,
        inputs=compilation.length,
        outputs=plan.max_length,
        **_lengths(plan),
        calls=compilation.calls,
        assumed={"hop_seconds": HOP_SECONDS, "layer_seconds": LAYER_SECONDS},
        compiler=estimate(compilation, alphas),
    )
    if not (compilation.calls and compilation.program.module):
        return plain.fields()
    chip, calls = topology.chip, compilation.calls
    predicted: dict[str, Any] = {}
    if isinstance(plan, BeamPlan):
        predicted["beams_predicted"] = predict_beams(chip, plan, calls)
    else:
        if plan.drafts:
            both = zip(PREDICTIONS, predict(chip, plan, calls, alphas), strict=True)
            predicted |= {"alphas": alphas, **dict(both)}
        predicted["exits"] = exits(chip, plan, calls) if plan.target.depths else None
    return dataclasses.replace(plain, **predicted).fields()


def _lengths(plan: AnyPlan) -> dict[str, Any]:
    if isinstance(plan, Plan):
        paths = {"paths": count} if (count := plan.drafter.paths) else {}
        return {"gamma": plan.longest_draft, **paths}
    of_draft = plan.drafter.width if plan.drafter else 0
    return {"beams": plan.beams, "draft_beams": of_draft, "draft_steps": plan.depth}


def of_devices(topology: Topology, mesh: Mapping[str, int], *programs: Compiled) -> dict[str, Any]:
    """Returns the record's fields about the devices, and about the programs that fit."""
    return {
        "topology": topology.name,
        "devices": topology.device_count,
        "mesh": dict(mesh),
        "chip": topology.chip,
        "compile_seconds": {each.name: round(each.seconds, 1) for each in programs},
        "programs": {each.name: contents(each) for each in programs if each.module},
    }


def memory_of(
    sizes: Mapping[str, Any], program: Compiled, topology: Topology, needed: float | None = None
) -> ProgramMemory:
    """Returns a program's memory; `sizes` and `needed` are bytes that were computed elsewhere."""
    limit = topology.chip.memory
    if program.memory is None:
        return ProgramMemory(**sizes, limit=limit, too_large=program.too_large, needed=needed)
    total, parts = program.memory.total, dataclasses.asdict(program.memory)
    room = limit - total
    return ProgramMemory(**sizes, **parts, limit=limit, total=total, left=room, fits=room > 0)


def contents(part: Compiled) -> ProgramContents:
    """Returns the contents of a program that fits in memory."""
    module = part.module
    assert module is not None and part.memory is not None
    sorts = [x for x in module.operations if x.scope.endswith("/top_k")]
    sorts = [x for x in sorts if x.opcode in ("custom-call", "sort")]
    by_size = sorted(module.operations, key=operator.attrgetter("bytes"))
    return ProgramContents(
        memory=part.memory,
        collectives=_by_loop(module.collectives, lambda i: i.opcode),
        copies=_by_loop([copy for copy in module.copies if not copy.fused], lambda i: i.shape),
        operations=dict(Counter("/".join(x.loop) for x in module.operations)),
        top_k=_by_loop(sorts, lambda i: i.operand),
        largest={"/".join(x.loop): LargestArray(x.shape, x.bytes) for x in by_size},
        host_transfers=len(module.host_transfers),
        dynamic_shapes=len(module.dynamic_shapes),
        sparse_core=_by_loop(module.sparse_core, lambda i: i.scope.rpartition("/")[2] or "other"),
        loops=module.loops,
        flops=part.flops,
        accessed=part.accessed,
    )


def _by_loop(
    instructions: Iterable[hlo.Instruction], kind_of: Callable[[hlo.Instruction], str]
) -> ByLoop:
    """Returns the number and bytes of instructions by loop path and by `kind_of(instruction)`."""
    loops: dict[str, dict[str, CountAndBytes]] = {}
    for instruction in instructions:
        kinds, kind = loops.setdefault("/".join(instruction.loop), {}), kind_of(instruction)
        before = kinds.get(kind, CountAndBytes(0, 0))
        kinds[kind] = CountAndBytes(before.count + 1, before.bytes + instruction.bytes)
    return loops
