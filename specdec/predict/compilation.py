"""The programs of a plan, compiled for a topology from shapes alone, and their contents."""

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
    """The bytes of one device while a program runs."""

    arguments: int  # parameters, mostly
    outputs: int
    temporaries: int  # all else it keeps: caches, activations
    code: int
    donated: int  # of the outputs, which lie where arguments were

    @classmethod
    def of(cls, executable: jax.stages.Compiled) -> DeviceMemory:
        """Returns the memory of an executable, by XLA's analysis."""
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
    """A program for one device of the mesh."""

    name: str
    seconds: float
    memory: DeviceMemory | None = None
    module: hlo.Module | None = None
    # flops, accessed: operations, and bytes read and written, by XLA's count. It counts the body of
    # a loop once.
    flops: float = 0.0
    accessed: float = 0.0
    # the compiler's message for a program that does not fit, which has no other figures
    too_large: str | None = None


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A plan compiled for a mesh, with the figures of one device."""

    plan: AnyPlan
    rows: int  # of the inputs
    length: int  # of the inputs
    mesh: Mapping[str, int]  # the sizes of the mesh's axes
    program: Compiled  # the program `decode`, or that of a beam search
    # The parts as programs of their own: `prefill`, in which each model reads the inputs, each
    # model call of an iteration, and the call of the target alone.
    parts: Mapping[str, Compiled]
    parameter_bytes: int  # of one device's share
    cache_bytes: int  # of one device's share
    # the figures that a roofline needs of a model, by role; {} unless all parts were compiled
    calls: Mapping[str, Call]

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """All programs that were compiled."""
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
    """Compiles for the devices of a mesh. Allocates nothing and reads no parameter."""
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
    """Returns the plan with calls on one token computed as takes the fewest cycles."""
    # They may be computed with two tokens, and on one device a draft's also with joined kernels.
    # Compilers of other devices state no cycles. Several rows and beams have no call on one token.
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
    """Returns the shapes of the parameters of each model, by role."""
    return {role: partitioning.abstract(model, mesh) for role, model in plan.models().items()}


def _platform(mesh: Mesh) -> str:
    return mesh.devices.flat[0].platform


def program_count(plan: AnyPlan, parts: bool = True) -> int:
    """Returns the number of programs that `compile_for` compiles."""
    return 2 + len(_calls_of(plan)) if parts else 1


def _way(plan: AnyPlan, mesh: Mesh, rows: int, widths: Sequence[int]) -> Way:
    """Returns the way to decode that has one program: in batches, or in refilled rows."""
    if widths and isinstance(plan, Plan):
        return Refilled(plan, rows, widths)
    return DecodeProgram(plan, mesh=mesh)


def _widest(plan: AnyPlan) -> dict[str, int]:
    """Returns the tokens in the widest call of each model that `parts` has, by role."""
    return dict(sorted((role, width) for role, width, _ in plan.parts()))


def _communicating(
    plan: AnyPlan, calls: Mapping[str, Call], parts: Mapping[str, Compiled]
) -> dict[str, Call]:
    """Returns the calls with the collectives of each widest call, {} if one is not known."""
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
    """Yields the parts in the order of an iteration, or only the first one if that is too large."""
    progress("prefill")
    reading, executable = _compiled("prefill", _prefills(plan), trees, inputs)
    yield reading
    if executable is None:
        return
    caches = _shapes_of(executable)
    alone = plan.target.computed_width(1)  # the width of a plain call of the target
    for role, width in _calls_of(plan):
        name = part_name(role, width)
        progress(name)
        tokens = jax.ShapeDtypeStruct([rows_of(inputs), width], jnp.int32)
        call, holder, tree = plan.own_calls().get(role), plan.holder(role), trees
        if call is None or (role, width) == ("target", alone):
            call, holder, tree = plan.models()[role].decode, role, trees[role]
        yield _compiled(name, Program(call, donate=[2]), tree, tokens, caches[holder])[0]


def _shapes_of(executable: jax.stages.Compiled) -> PyTree:
    """Returns the shapes of a program's results, with their shardings."""
    return jax.tree.map(
        lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=info.sharding),
        executable.out_info,
    )


def _prefills(plan: AnyPlan) -> Program:
    return Program(functools.partial(_prefill, plan=plan))


def _prefill(trees: Mapping[str, PyTree], inputs: PyTree, *, plan: AnyPlan) -> dict[str, PyTree]:
    """Returns each model's cache after the inputs, by role."""
    models, views = plan.models(), _views(plan)
    prefilled = prefill(trees, inputs, models=models, slots=plan.capacity, views=views)
    return {role: cache for role, (_, cache) in prefilled.items()}


def _views(plan: AnyPlan) -> Views:
    return plan.drafter.views() if plan.drafter else {}


def _length_of(role: str, plan: AnyPlan, inputs: PyTree) -> int:
    """Returns the length of the inputs that a model reads."""
    view = _views(plan).get(role)
    return tokens_of(inputs if view is None else jax.eval_shape(view, inputs)).shape[1]


def _calls_of(plan: AnyPlan) -> list[tuple[str, int]]:
    """Returns role and width of each kind of call, that of the target alone first."""
    parts = (*plan.alone().parts(), *plan.parts())
    return list(dict.fromkeys((_compiled_as(role), width) for role, width, _ in parts))


def part_name(role: str, width: int) -> str:
    """Returns the name of a call's program; the target's depths share one."""
    return f"{_compiled_as(role)} {width}"


def _compiled_as(role: str) -> str:
    return "target" if verifies(role) else role


def compiled(
    name: str, make: Callable[[], jax.stages.Compiled]
) -> tuple[Compiled, jax.stages.Compiled | None]:
    """Compiles a program."""
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
    """Returns the line in which XLA says by how much a program exceeds the memory."""
    name, _, line = message.splitlines()[0].partition(": ")
    return line if name == "RESOURCE_EXHAUSTED" else None
