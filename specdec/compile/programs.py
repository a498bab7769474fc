"""The programs of a run, compiled for a topology from shapes alone, and what is in them."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specdec import partitioning
from specdec.compile import hlo
from specdec.compile.hardware import Call
from specdec.decoding import capacity, decode, prefill, row_keys
from specdec.models.t5 import T5Target
from specdec.types import Drafter, Params, PyTree, SamplingRule, Schedule, Verifier


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is compiled; the arguments of `specdec.decode`, and the shape of its inputs.

    draft: the drafter's model, whose `Params.drafter` it is; None if it has none.
    length, batch_size: of the inputs, [batch_size, length].
    """

    target: T5Target
    drafter: Drafter
    draft: T5Target | None
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    length: int
    max_length: int
    batch_size: int = 1
    eos_id: int = 1

    @property
    def gamma(self) -> int:
        """The longest draft."""
        return self.schedule.buckets[-1]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device while a program runs."""

    arguments: int  # parameters, mostly
    outputs: int
    temporaries: int  # all else it keeps: caches, activations
    code: int
    donated: int  # of the outputs, which lie where arguments were

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries + self.code - self.donated


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program for one device of the mesh.

    too_large: what the compiler says of a program that does not fit; there is nothing else then.
    flops: by XLA's count, of programs without loops (it counts a loop's body once).
    """

    name: str
    seconds: float
    memory: Memory | None = None
    text: hlo.Program | None = None
    flops: float = 0.0
    too_large: str | None = None


@dataclasses.dataclass(frozen=True)
class Programs:
    """What was compiled for a mesh, and two sizes of one device's share.

    whole: the decode program. parts: 'prefill', 'target' (one token), 'verify' (gamma + 1) and, if
    a model drafts, 'draft' (one token), each as a program of its own.
    """

    whole: Compiled
    parts: dict[str, Compiled]
    parameter_bytes: int
    cache_bytes: int
    calls: dict[str, Call]


def compile_for(
    subject: Subject,
    mesh: Mesh,
    rules: partitioning.Rules,
    draft_rules: partitioning.Rules,
    *,
    parts: bool = True,
    progress: Callable[[str], None] = lambda name: None,
) -> Programs:
    """Compiles for the devices of a mesh; nothing is allocated and no parameter is read.

    Args:
      mesh: of devices that need not be there (`Topology.devices`).
      rules, draft_rules: see `partitioning.Partitioner`.
      parts: compile the parts as well, and not only the whole decode program.
      progress: is told the name of each program before it is compiled.

    Raises:
      ValueError: the subject cannot be decoded, or not be divided over the mesh.
    """
    partitioning.check_batch(subject.batch_size, mesh)
    subject = _divided(subject, rules, draft_rules)
    rows = partitioning.rows(mesh)
    params = Params(
        _abstract(subject.target, mesh), _abstract(subject.draft, mesh) if subject.draft else ()
    )
    index = jax.ShapeDtypeStruct([subject.batch_size], jnp.int32)
    keys = jax.eval_shape(functools.partial(row_keys, 0), index).update(sharding=rows)
    shape = [subject.batch_size, subject.length]
    inputs = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    models: dict[str, Any] = {
        "target": subject.target,
        "drafter": subject.drafter,
        "schedule": subject.schedule,
        "max_length": subject.max_length,
    }
    rest = {"verifier": subject.verifier, "sampling": subject.sampling, "eos_id": subject.eos_id}
    with jax.set_mesh(mesh):
        whole = functools.partial(decode, **models, **rest)
        lowered = jax.jit(whole, out_shardings=partitioning.whole(mesh)).lower(params, keys, inputs)
        begin = jax.jit(functools.partial(prefill, **models)).lower(params, keys, inputs)
        progress("decode")
        compiled, _ = _compile("decode", lowered)
        compiled_parts = {}
        if parts:
            progress("prefill")
            compiled_parts["prefill"], executable = _compile("prefill", begin)
            if executable is not None:
                state = jax.tree.map(_placed, begin.out_info, executable.output_shardings)
                for name, call in _calls(subject, params, state):
                    progress(name)
                    compiled_parts[name], _ = _compile(name, call)
    caches = {
        role: _cache_bytes(model, subject, mesh)
        for role, model in (("target", subject.target), ("draft", subject.draft))
        if model
    }
    return Programs(
        whole=compiled,
        parts=compiled_parts,
        parameter_bytes=device_bytes(params),
        cache_bytes=sum(caches.values()),
        calls=_roofline_calls(subject, params, caches, compiled.text, mesh),
    )


def _placed(info: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding)


def _cache_bytes(model: T5Target, subject: Subject, mesh: Mesh) -> int:
    """A device's share of a model's keys and values: of outputs and drafts, and of inputs."""
    config, sizes = model.config, dict(mesh.shape)
    over = dict(model.rules)
    rows = subject.batch_size // sizes.get(over.get("batch"), 1)
    heads = config.num_heads // sizes.get(over.get("heads"), 1)
    slots = capacity(subject.max_length, subject.schedule) + subject.length
    layer = 2 * rows * heads * slots * config.head_dim * jnp.dtype(config.dtype).itemsize
    return config.num_decoder_layers * layer


def _divided(
    subject: Subject, rules: partitioning.Rules, draft_rules: partitioning.Rules
) -> Subject:
    target, draft, drafter = partitioning.divided(
        subject.target, subject.draft, subject.drafter, rules, draft_rules
    )
    return dataclasses.replace(subject, target=target, draft=draft, drafter=drafter)


def _abstract(model: T5Target, mesh: Mesh) -> PyTree:
    return partitioning.abstract(model, model.rules, mesh, model.config.dtype)


def _calls(
    subject: Subject, params: Params, state: Any
) -> Iterable[tuple[str, jax.stages.Lowered]]:
    """One call each of the target with one token, of the target verifying, and of the drafter."""

    def call(model: T5Target, params: PyTree, cache: PyTree, width: int) -> jax.stages.Lowered:
        tokens = jax.ShapeDtypeStruct([subject.batch_size, width], jnp.int32)
        return jax.jit(model.decode, donate_argnums=2).lower(params, tokens, cache)

    yield "target", call(subject.target, params.target, state.cache, 1)
    yield "verify", call(subject.target, params.target, state.cache, subject.gamma + 1)
    if subject.draft:
        yield "draft", call(subject.draft, params.drafter, state.drafter, 1)


def _compile(name: str, lowered: jax.stages.Lowered) -> tuple[Compiled, Any]:
    start = time.perf_counter()
    try:
        executable: Any = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if (message := _too_large(str(error))) is None:
            raise
        return Compiled(name, time.perf_counter() - start, too_large=message), None
    seconds = time.perf_counter() - start
    stats = executable.memory_analysis()
    memory = Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        donated=stats.alias_size_in_bytes,
    )
    flops = (executable.cost_analysis() or {}).get("flops", 0.0)
    return Compiled(name, seconds, memory, hlo.read(executable.as_text()), flops), executable


def _too_large(message: str) -> str | None:
    """The line in which XLA says by how much a program exceeds the memory."""
    name, _, line = message.splitlines()[0].partition(": ")
    return line if name == "RESOURCE_EXHAUSTED" else None


def device_bytes(tree: PyTree) -> int:
    """Of the largest share that a device has of a tree of abstract arrays."""
    return sum(_share(leaf) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _share(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape)


def _roofline_calls(
    subject: Subject,
    params: Params,
    caches: Mapping[str, int],
    text: hlo.Program | None,
    mesh: Mesh,
) -> dict[str, Call]:
    """What `hardware.Call` needs of the target and the drafter; their collectives are those of the
    decode loop's own, per token of a verify call, and of the loop that extends a draft."""
    models: dict[str, tuple[T5Target, PyTree, tuple[str, ...], int]] = {
        "target": (subject.target, params.target, ("decode",), subject.gamma + 1)
    }
    if subject.draft:
        models["draft"] = (subject.draft, params.drafter, ("decode", "extend"), 1)
    calls = {}
    for role, (model, tree, loop, width) in models.items():
        read = model.read_by_decode(tree)
        collectives = [i for i in (text.collectives if text else ()) if i.loop == loop]
        reduced = [i.bytes for i in collectives if i.opcode == "all-reduce"]
        gathered = [i.bytes for i in collectives if i.opcode == "all-gather"]
        rows = subject.batch_size // mesh.shape[partitioning.DATA]
        calls[role] = Call(
            bytes=device_bytes(read) + caches[role],
            flops=2 * sum(map(_share, jax.tree.leaves(read))) * rows,
            layers=model.config.num_decoder_layers,
            reductions=len(reduced),
            reduced=sum(reduced) / width,
            gathers=len(gathered),
            gathered=sum(gathered) / width,
            devices=mesh.shape[partitioning.MODEL],
        )
    return calls
