"""Compiles the programs of a plan for a topology from shapes alone, and reads their figures."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specdec.decoding.beam_plan import AnyPlan
from specdec.decoding.program import DecodeProgram, Program, Way, batch_shapes
from specdec.decoding.refilling import Refilled
from specdec.decoding.states import rows_of
from specdec.measure.parts import Views, prefill
from specdec.models import partitioning
from specdec.models.bases.stack import StackModel
from specdec.models.contract.inputs import tokens_of
from specdec.models.contract.model import Model, Target
from specdec.plan import Plan
from specdec.predict import hlo
from specdec.predict.hardware import Call
from specdec.predict.roofline import device_bytes, silent_call, together, with_collectives
from specdec.types import PyTree, of_depth, verifies


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """The bytes that a program needs on one device."""

    arguments: int  # mostly parameters
    outputs: int
    temporaries: int  # all other arrays, such as caches and activations
    code: int
    donated: int  # bytes of outputs that reuse the memory of donated arguments

    @classmethod
    def of(cls, executable: jax.stages.Compiled) -> DeviceMemory:
        """Returns the memory of an executable from XLA's memory analysis."""
        stats = executable.memory_analysis()
        assert stats is not None, "XLA analyses the memory of each program"
        return cls(
            arguments=stats.argument_size_in_bytes,
            outputs=stats.output_size_in_bytes,
            temporaries=stats.temp_size_in_bytes,
            code=stats.generated_code_size_in_bytes,
            donated=stats.alias_size_in_bytes,
        )

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code - self.donated


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The figures of a compiled program on one device of the mesh."""

    name: str
    seconds: float  # of the compilation
    memory: DeviceMemory | None = None
    module: hlo.Module | None = None
    # XLA's counts of operations, and of bytes read and written. The body of a loop counts once.
    flops: float = 0.0
    accessed: float = 0.0
    # the compiler's message if the program does not fit in memory, which then has no other figures
    too_large: str | None = None


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A plan compiled for a mesh, with the figures of one device."""

    plan: AnyPlan
    rows: int  # the batch size of the inputs
    length: int  # the length of the inputs, in tokens
    mesh: Mapping[str, int]  # axis name -> number of devices
    program: Compiled  # the program `decode`, or the program of a beam search
    # name -> separate programs of a generation's parts: `prefill`, in which all models read the
    # inputs, each model call of an iteration, and the call of the target alone
    parts: Mapping[str, Compiled]
    parameter_bytes: int  # on one device
    cache_bytes: int  # on one device
    # role -> figures of a model's call for a roofline; {} unless all parts were compiled
    calls: Mapping[str, Call]

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """The program that decodes, and the programs of the parts."""
        return self.program, *self.parts.values()


def compile_for(
    plan: AnyPlan,
    shape: tuple[int, int],
    mesh: Mesh,
    *,
    tables: Mapping[str, PyTree] | None = None,
    widths: Sequence[int] = (),
    parts: bool = True,
    progress: Callable[[str], None] = lambda name: None,
) -> Compilation:
    """Compiles a plan for inputs of `shape` (B, S) on the devices of a mesh, without parameters.

    `widths` are the input lengths of refilled rows, and `tables` has shapes of tables by role."""
    partitioning.check_batch(shape[0], mesh)
    tables = tables or {}
    keys, inputs = batch_shapes(plan.target, *shape, mesh)
    progress("decode")
    plan = _fewest_cycles(plan, inputs, mesh) if parts else plan
    trees = _abstract(plan, mesh)
    with jax.set_mesh(mesh):
        params = plan.params({**trees, **tables})
        way = _way(plan, mesh, shape[0], widths)
        ((program, arguments),) = way.parts(params, keys, inputs)
        decode, _ = _compiled("decode", program, *arguments)
        compiled_parts = tuple(_parts(plan, trees, inputs, progress)) if parts else ()

    def call_of(target: Target, tree: PyTree, length: int = shape[1]) -> tuple[Call, int]:
        model = cast(Model, target)
        cache = model.cache_bytes(shape[0], plan.capacity, length, mesh.shape)
        return silent_call(model, tree, cache, shape[0], mesh.shape), cache

    calls, cache_bytes = {}, 0
    for role, model in plan.models().items():
        calls[role], size = call_of(model, trees[role], _length_of(role, plan, inputs))
        cache_bytes += size
    partial = plan.drafter.partial_models(plan.target) if isinstance(plan, Plan) else {}
    for role, model in partial.items():
        assert isinstance(model, StackModel)
        of_layers, _ = call_of(model, model.part_of(trees["target"]))
        heads = [head for head in plan.models() if head not in _widest(plan)]
        calls[role] = together(of_layers, *map(calls.pop, heads))
    for depth in plan.target.depths:
        call, _ = call_of(plan.target.always(depth), trees["target"])
        calls[of_depth(depth)] = dataclasses.replace(call, layers=depth)
    by_name = {part.name: part for part in compiled_parts}
    return Compilation(
        plan,
        *shape,
        mesh=dict(mesh.shape),
        program=decode,
        parts=by_name,
        parameter_bytes=device_bytes([trees, tables]),
        cache_bytes=cache_bytes,
        calls=_communicating(plan, calls, by_name),
    )


def _fewest_cycles(plan: AnyPlan, inputs: PyTree, mesh: Mesh) -> AnyPlan:
    """Returns the plan with the model layouts whose one-token calls take the fewest TPU cycles."""
    # A call on one token may be computed with two, and a draft's on one device with joined kernels.
    # Compilers of other devices state no cycles. Several rows and beams have no one-token calls.
    if not isinstance(plan, Plan) or rows_of(inputs) > 1 or _platform(mesh) != "tpu":
        return plan
    calls = (*plan.alone().parts(), *plan.parts())
    single = {plan.holder(role) for role, width, _ in calls if width == 1}
    models = {role: model for role, model in plan.models().items() if role in single}
    models = {role: model for role, model in models.items() if isinstance(model, StackModel)}
    paired = {role: model.in_layout(least_width=2) for role, model in models.items()}
    trees = _abstract(plan, mesh)
    with jax.set_mesh(mesh):
        prefills = _prefills(plan.with_models(paired))
        _, executable = _compiled("prefill", prefills, trees, inputs)
    if executable is None:
        return plan
    caches, tokens = _shapes_of(executable), jax.ShapeDtypeStruct([1, 1], jnp.int32)

    def cycles(role: str, model: StackModel) -> float:
        call, params = Program(model.decode, donate=[2]), partitioning.abstract(model, mesh)
        with jax.set_mesh(mesh):
            part, _ = _compiled(role, call, params, tokens, caches[role])
        operations = part.module.operations if part.module else ()
        return sum(operation.cycles for operation in operations) or math.inf

    chosen = {}
    for role, model in models.items():
        ways = [model, paired[role]]
        joins = (
            role != "target" and model.has_joined and model.keeps_kernels and not model.layout.fused
        )
        if joins and mesh.size == 1:
            ways.append(paired[role].in_layout(joined=True))
        chosen[role] = min(ways, key=functools.partial(cycles, role))
    return plan.with_models(chosen)


def _abstract(plan: AnyPlan, mesh: Mesh) -> dict[str, PyTree]:
    return {role: partitioning.abstract(model, mesh) for role, model in plan.models().items()}


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def program_count(plan: AnyPlan, parts: bool = True) -> int:
    """Returns the number of programs that `compile_for` compiles."""
    return 2 + len(_calls_of(plan)) if parts else 1


def _way(plan: AnyPlan, mesh: Mesh, rows: int, widths: Sequence[int]) -> Way:
    """Returns how to decode: in refilled rows for these input lengths, or in batches if none."""
    if widths and isinstance(plan, Plan):
        return Refilled(plan, rows, widths)
    return DecodeProgram(plan, mesh=mesh)


def _widest(plan: AnyPlan) -> dict[str, int]:
    """Returns role -> the number of tokens of the widest call in `plan.parts`."""
    return dict(sorted((role, width) for role, width, _ in plan.parts()))


def _communicating(
    plan: AnyPlan, calls: Mapping[str, Call], parts: Mapping[str, Compiled]
) -> dict[str, Call]:
    """Returns role -> its call with the collectives of its widest program; {} if one lacks."""
    communicating, widest, target = {}, _widest(plan), cast(Model, plan.target)
    for role, call in calls.items():
        width = widest.get(role, 1)
        part = parts.get(part_name(role, width))
        if part is None or part.module is None:
            return {}
        share = call.layers / target.num_layers if role != _compiled_as(role) else 1.0
        communicating[role] = with_collectives(call, part.module, width, share)
    return communicating


def _parts(
    plan: AnyPlan, trees: Mapping[str, PyTree], inputs: PyTree, progress: Callable[[str], None]
) -> Iterator[Compiled]:
    """Yields prefill and the calls of an iteration, compiled; only prefill if it does not fit."""
    progress("prefill")
    reading, executable = _compiled("prefill", _prefills(plan), trees, inputs)
    yield reading
    if executable is None:
        return
    caches = _shapes_of(executable)
    alone = plan.target.computed_width(1)  # the tokens of a call of the target alone
    for role, width in _calls_of(plan):
        name = part_name(role, width)
        progress(name)
        tokens = jax.ShapeDtypeStruct([rows_of(inputs), width], jnp.int32)
        call, holder, tree = plan.own_calls().get(role), plan.holder(role), trees
        if call is None or (role, width) == ("target", alone):
            call, holder, tree = plan.models()[role].decode, role, trees[role]
        yield _compiled(name, Program(call, donate=[2]), tree, tokens, caches[holder])[0]


def _shapes_of(executable: jax.stages.Compiled) -> PyTree:
    return jax.tree.map(
        lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=info.sharding),
        executable.out_info,
    )


def _prefills(plan: AnyPlan) -> Program:
    return Program(functools.partial(_prefill, plan=plan))


def _prefill(trees: Mapping[str, PyTree], inputs: PyTree, *, plan: AnyPlan) -> dict[str, PyTree]:
    """Returns role -> the model's cache after it has read the inputs."""
    models, views = plan.models(), _views(plan)
    prefilled = prefill(trees, inputs, models=models, slots=plan.capacity, views=views)
    return {role: cache for role, (_, cache) in prefilled.items()}


def _views(plan: AnyPlan) -> Views:
    return plan.drafter.views() if plan.drafter else {}


def _length_of(role: str, plan: AnyPlan, inputs: PyTree) -> int:
    view = _views(plan).get(role)
    return tokens_of(inputs if view is None else jax.eval_shape(view, inputs)).shape[1]


def _calls_of(plan: AnyPlan) -> list[tuple[str, int]]:
    """Returns the distinct (role, tokens) of all model calls, the target alone first."""
    parts = (*plan.alone().parts(), *plan.parts())
    return list(dict.fromkeys((_compiled_as(role), width) for role, width, _ in parts))


def part_name(role: str, width: int) -> str:
    """Returns the name of a call's program, such as "target 8", the same for all early exits."""
    return f"{_compiled_as(role)} {width}"


def _compiled_as(role: str) -> str:
    return "target" if verifies(role) else role


def compiled(
    name: str, make: Callable[[], jax.stages.Compiled]
) -> tuple[Compiled, jax.stages.Compiled | None]:
    """Runs `make`, which compiles, and returns the figures; no executable if it does not fit."""
    start = time.perf_counter()
    try:
        executable = make()
    except jax.errors.JaxRuntimeError as error:
        if (message := _too_large(str(error))) is None:
            raise
        return Compiled(name, time.perf_counter() - start, too_large=message), None
    seconds = time.perf_counter() - start
    costs = executable.cost_analysis() or {}
    flops, accessed = (costs.get(key, 0.0) for key in ("flops", "bytes accessed"))
    module = hlo.read(executable.as_text() or "")
    return Compiled(name, seconds, DeviceMemory.of(executable), module, flops, accessed), executable


def _compiled(
    name: str, program: Program, *arguments: PyTree
) -> tuple[Compiled, jax.stages.Compiled | None]:
    return compiled(name, functools.partial(program.compile, *arguments))


def _too_large(message: str) -> str | None:
    """Returns the line of XLA's message about exceeded memory; None for another error."""
    name, _, line = message.splitlines()[0].partition(": ")
    return line if name == "RESOURCE_EXHAUSTED" else None
