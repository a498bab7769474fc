"""Compiles the update of a training run for a topology from shapes alone, and reads its figures."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from specdec.models import partitioning
from specdec.predict import hlo
from specdec.predict.compilation import Compiled, compiled
from specdec.predict.hardware import GIB, Call, Chip
from specdec.predict.roofline import device_bytes
from specdec.training import Pairs, TrainRun
from specdec.training.loss import TopLaws
from specdec.training.updates import (
    Recipe,
    State,
    abstract_state,
    applied,
    over_devices,
    update_program,
)
from specdec.types import PyTree

TEXTS = "texts at a time"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The bytes of an update's arrays on one device, computed from shapes and shardings."""

    parameters: int  # of the trained model
    optimizer: int  # of the optimizer's state
    gradients: int  # of all gradients, which are temporaries
    target: int  # of the parameters of the target, and of a reference drafter
    # The target's arrays for one micro-batch, which need not all exist at the same time.
    target_cache: int
    target_logits: int

    @property
    def fixed(self) -> int:
        """The bytes of the arrays whose sizes do not depend on the batch size."""
        return self.parameters + self.optimizer + self.gradients + self.target


@dataclasses.dataclass(frozen=True)
class CompiledUpdate:
    """A compiled training update, with the figures of one device."""

    run: TrainRun  # the run, divided over the mesh
    mesh: Mapping[str, int]  # axis name -> number of devices
    program: Compiled  # the program of an update
    # the optimizer step after the last micro-batch, compiled alone; None for a single micro-batch
    optimizer: Compiled | None
    sizes: Sizes
    # the shapes, as sorted axis sizes, of the target's parameters that are divided over devices
    divided: frozenset[tuple[int, ...]]

    @property
    def texts(self) -> int:
        """The number of texts of a micro-batch."""
        return self.run.batch_size // self.run.micro_batches

    def collectives(self) -> Counter[str]:
        """Returns opcode -> the number of collectives in an update."""
        return self._exchanged(lambda collective: 1)

    def exchanged(self) -> Counter[str]:
        """Returns opcode -> the bytes of the results of an update's collectives."""
        return self._exchanged(lambda collective: collective.bytes)

    def gathered(self) -> Iterator[hlo.Instruction]:
        """Yields the all-gathers whose result is a whole parameter of the target."""
        assert self.program.module is not None, "it fits"
        for collective in self.program.module.collectives:
            shapes = {_unordered(sizes) for _, sizes in hlo.arrays(collective.shape)}
            if collective.opcode == "all-gather" and shapes & self.divided:
                yield collective

    def costs(self) -> tuple[float, float]:
        """Returns the operations and the accessed bytes of an update, by XLA's counts."""
        # XLA counts the body of a loop once, so micro-batches after the first are added here.
        once, outside = self.program, self.optimizer or Compiled("optimizer", 0.0)
        again = self.run.micro_batches - 1
        flops = once.flops + again * (once.flops - outside.flops)
        return flops, once.accessed + again * (once.accessed - outside.accessed)

    def call(self) -> Call:
        """Returns an update's work as a `Call`, whose method `seconds` predicts its time."""
        flops, accessed = self.costs()
        count, size = self.collectives(), self.exchanged()
        return Call(
            bytes=accessed,
            flops=flops,
            layers=0,
            reductions=count["all-reduce"],
            reduced=size["all-reduce"],
            gathers=count.total() - count["all-reduce"],
            gathered=size.total() - size["all-reduce"],
            devices=math.prod(self.mesh.values()),
        )

    def _exchanged(self, value: Callable[[hlo.Instruction], int]) -> Counter[str]:
        """Returns opcode -> the sum of a value over collectives, for all micro-batches."""
        assert self.program.module is not None, "it fits"
        by_kind: Counter[str] = Counter()
        for collective in self.program.module.collectives:
            times = self.run.micro_batches if collective.loop else 1
            by_kind[collective.opcode] += times * value(collective)
        return by_kind


def compile_update(
    run: TrainRun,
    mesh: Mesh,
    *,
    optimizer: Compiled | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> CompiledUpdate:
    """Compiles the update of a run for the devices of a mesh, without arrays or files.

    `optimizer` is the optimizer step if it was compiled before; `progress` gets program names."""
    run = over_devices(dataclasses.replace(run, placement=run.placement.over(mesh)))
    recipe, state = Recipe.of(run), abstract_state(Recipe.of(run))
    target = () if run.target is None else partitioning.abstract(run.target, mesh)
    reference = () if run.reference_path is None else state.params
    with jax.set_mesh(mesh):
        progress("update")
        arguments = state, abstract_pairs(run, mesh), target, reference
        program, _ = compiled("update", lambda: update_program(recipe).lower(*arguments).compile())
        if optimizer is None and program.module is not None and run.micro_batches > 1:
            progress("optimizer")
            apply = jax.jit(functools.partial(applied, recipe=recipe), donate_argnums=0)
            optimizer, _ = compiled("optimizer", apply.lower(state, state.params).compile)
    return CompiledUpdate(
        run,
        dict(mesh.shape),
        program,
        optimizer,
        _sizes(run, mesh, state, (target, reference)),
        frozenset(
            _unordered(leaf.shape)
            for leaf in jax.tree.leaves(target)
            if leaf.sharding.shard_shape(leaf.shape) != leaf.shape
        ),
    )


def abstract_pairs(run: TrainRun, mesh: Mesh) -> Pairs:
    """Returns a batch of a run's longest inputs and targets, as shapes with shardings."""
    sharding = partitioning.rows(mesh)

    def array(length: int, *more: int, dtype: DTypeLike = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct([run.batch_size, length, *more], dtype, sharding=sharding)

    inputs, targets = run.lengths["inputs"], run.lengths["targets"]
    laws, top = None, run.objective.top
    if top is not None:
        laws = TopLaws(array(targets, top), array(targets, top + 1, dtype=jnp.float32))
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        run.reader.inputs_shape(run.batch_size, inputs),
    )
    return Pairs(shapes, array(targets), laws)


def largest_batch(
    run: TrainRun,
    mesh: Mesh,
    chip: Chip,
    begun: CompiledUpdate,
    *,
    progress: Callable[[str], None] = lambda name: None,
) -> CompiledUpdate | None:
    """Returns the update with the largest micro-batch that fits in memory; None if none fits.

    The search starts from the compiled update `begun`."""
    # The search ends when the largest that fits and the smallest that does not are at most an
    # eighth apart, or when memory has room for less than an eighth more.
    step = mesh.shape[partitioning.DATA]
    best, high, tried = None, None, begun
    fitting: list[tuple[int, float]] = [(0, begun.sizes.fixed)]
    while True:
        if fits(tried, chip):
            best = tried
            fitting.append((tried.texts, needed(tried)))
        else:
            high = tried.texts, needed(tried)
        texts = _next_attempt(chip.memory, fitting, high, step)
        if texts is None:
            return best
        tried = compile_update(
            dataclasses.replace(run, batch_size=texts * run.micro_batches),
            mesh,
            optimizer=best.optimizer if best else None,
            progress=lambda name, texts=texts: progress(f"{name} with {texts} {TEXTS}"),
        )


def _next_attempt(
    memory: float, fitting: list[tuple[int, float]], high: tuple[int, float] | None, step: int
) -> int | None:
    """Returns the micro-batch to compile next; None if the search is over."""
    # Memory grows about linearly with the number of texts, so two results determine a line. The
    # attempt fills 15/16 of the memory that is left on this line, so that it usually fits.
    low = fitting[-1]
    enough = max(step, low[0] // 8)
    if high and high[0] - low[0] <= enough:
        return None
    (a, least), (b, most) = (low, high) if high else fitting[-2:]
    slope = (most - least) / (b - a)
    room = (memory - low[1]) / slope if slope > 0 else low[0]
    more = int(room * 15 / 16) // step * step
    if high is None:
        return low[0] + more if more >= enough else None
    return min(low[0] + max(more, step), high[0] - step)


def fits(update: CompiledUpdate, chip: Chip) -> bool:
    """Returns whether an update fits in the memory of a device."""
    return update.program.memory is not None and update.program.memory.total < chip.memory


def needed(update: CompiledUpdate) -> float:
    """Returns the bytes that an update needs on one device; inf if XLA's message names none."""
    if update.program.memory is not None:
        return update.program.memory.total
    # The largest amount of memory that the compiler's message names.
    units = {"K": 2**10, "M": 2**20, "G": GIB}
    amounts = re.findall(r"(\d+(?:\.\d+)?)([KMG])", update.program.too_large or "")
    return max((float(number) * units[unit] for number, unit in amounts), default=math.inf)


def _sizes(run: TrainRun, mesh: Mesh, state: State, frozen: PyTree) -> Sizes:
    cache = logits = 0
    parameters = device_bytes(state.params)
    if run.target is not None and run.objective.top is None:
        texts, outputs = run.batch_size // run.micro_batches, run.lengths["targets"]
        cache = run.target.cache_bytes(texts, outputs, run.lengths["inputs"], mesh.shape)
        if run.objective.reads_target:
            axes = partitioning.DATA, dict(run.target.axis_rules).get("logits")
            parts = math.prod(mesh.shape[axis] for axis in axes if axis is not None)
            logits = 4 * texts * outputs * run.target.vocab_size // parts
    return Sizes(
        parameters, device_bytes(state.optimizer), parameters, device_bytes(frozen), cache, logits
    )


def _unordered(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(size for size in shape if size != 1))
