"""Programs that are compiled once for each shape, and the ways to decode batches with them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specdec import decoding
from specdec.common import progress
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.decoding.beam_search import BeamOutput, beam_search
from specdec.models import partitioning
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.types import Array, DecodeOutput, Params, PyTree

# Bytes of parameters that the cache of a processor may hold from one call to the next.
CACHED = 2**29
# TPUs whose chips have no SparseCore, by the beginning of JAX's name of their kind.
NO_SPARSE_CORE = ("TPU v2", "TPU v3", "TPU v4 lite", "TPU v5 lite", "TPU v5e")
# Options that keep lookups in the program. libtpu moves those of many rows to a TPU7x's SparseCore,
# for which a loop at batch 1 waits longer than the lookup takes: github.com/jax-ml/jax/issues/40553
KEEP_LOOKUPS: dict[str, str | bool] = {
    "xla_tpu_offload_gather_to_sparsecore": "false",
    "xla_tpu_offload_all_supported_gathers_to_sparsecore": "false",
}


def compiler_options(device: Any) -> dict[str, str | bool]:
    """Returns the options of the compiler with which decode programs are compiled for a device."""
    is_tpu = device.platform == "tpu" and not device.device_kind.startswith(NO_SPARSE_CORE)
    return dict(KEEP_LOOKUPS) if is_tpu else {}


def executable(lowered: jax.stages.Lowered, device: Any) -> jax.stages.Compiled:
    """Compiles a decode program.

    An option that this compiler does not know is left out, with a warning.
    """
    options = compiler_options(device)
    while True:
        try:
            return lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            unknown = [x for x in options if f"No such compile option: '{x}'" in str(error)]
            if not unknown:
                raise
            options = {x: on for x, on in options.items() if x not in unknown}
            warnings.warn(
                f"this libtpu has no option {unknown[0]}, so lookups may move to the SparseCore; "
                "`specdec compile` counts them",
                stacklevel=2,
            )


class Program:
    """The executables of a pure function(params, *inputs), one for each shape of the inputs.

    Tracing and compiling happen once for each shape, in the first thread that needs it. Over a
    mesh, every result is replicated; trace, compile and call under `jax.set_mesh`. Results may
    reuse the memory of the arguments at the indices `donate`.
    """

    def __init__(
        self,
        function: Callable,
        *,
        mesh: Mesh | None = None,
        donate: Sequence[int] = (),
        **shardings: PyTree,
    ):
        self.mesh = mesh
        self.seconds = 0.0  # of all compilations, including tracing
        self._function, self._identity = function, object()
        if mesh is not None:
            shardings = {"out_shardings": partitioning.whole(mesh)}
        self._jitted = jax.jit(function, donate_argnums=tuple(donate), **shardings)
        self._lowered: dict[Hashable, jax.stages.Lowered] = {}
        self._executables: dict[Hashable, jax.stages.Compiled] = {}
        self._ahead: dict[Hashable, concurrent.futures.Future] = {}
        self._adding = threading.Lock()  # to `seconds`
        self._making: dict[Hashable, threading.RLock] = {}  # the programs of a shape

    def lower(self, *arguments: PyTree) -> jax.stages.Lowered:
        """Returns the function traced for arguments of these shapes, which is traced only once."""
        shape = _shape(arguments[1:])
        with self._alone(shape):
            if shape not in self._lowered:
                with self._compiling(shape), self._timed(), _without_collections():
                    self._lowered[shape] = self._lower(*arguments)
            return self._lowered[shape]

    def begin_to_compile(self, *arguments: PyTree) -> None:
        """Compiles in the background, for example while parameters are read; not over a mesh."""
        if self.mesh is None:
            lowered = self.lower(*arguments)
            shape, background = _shape(arguments[1:]), concurrent.futures.ThreadPoolExecutor(1)
            self._ahead[shape] = background.submit(self._finish, lowered)
            background.shutdown(wait=False)

    def compile(self, *arguments: PyTree) -> jax.stages.Compiled:
        """Returns the executable for arguments of these shapes, compiled once.

        It is a function of the arguments, with XLA's `memory_analysis`, `cost_analysis` and
        `as_text`.
        """
        shape = _shape(arguments[1:])
        with self._alone(shape):
            if shape not in self._executables:
                begun = self._ahead.pop(shape, None)
                with self._compiling(shape):
                    compiled = begun.result() if begun else self._finish(self.lower(*arguments))
                self._executables[shape] = compiled
                del self._lowered[shape]
            return self._executables[shape]

    def _compiling(self, shape: Hashable) -> contextlib.AbstractContextManager[None]:
        """Returns the stage of tracing or compiling, which shows this program on a terminal."""
        return progress.compiling((self._identity, shape), _in_words(self._function))

    def _alone(self, shape: Hashable) -> threading.RLock:
        """Returns the lock that a thread holds while it traces or compiles for a shape."""
        return self._making.setdefault(shape, threading.RLock())

    def _lower(self, *arguments: PyTree) -> Any:
        return self._jitted.lower(*arguments)

    def _compiled(self, lowered: Any) -> Any:
        mesh = self.mesh or jax.sharding.get_mesh()
        return executable(lowered, jax.devices()[0] if mesh.empty else mesh.devices.flat[0])

    def _finish(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        with self._timed():
            return self._compiled(lowered)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            with self._adding:
                self.seconds += taken

    def __call__(self, *arguments: PyTree) -> PyTree:
        return self.compile(*arguments)(*arguments)

    def warmed(self, *arguments: PyTree) -> jax.stages.Compiled:
        """Returns the executable for these arguments, after one run if its parameters are small.

        The parameters are the first argument. Timed alone, a small program finds them in the
        processor's cache. Alternating with others, it must read them from memory, which takes a
        third of a small model's time.
        """
        execute = self.compile(*arguments)
        if sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[0])) < CACHED:
            jax.block_until_ready(execute(*arguments))
        return execute

    def costs(self, *arguments: PyTree) -> dict[str, float]:
        """Returns the FLOPs and the bytes accessed by one call, from XLA's analysis.

        XLA counts the body of a loop once. Values that a backend does not count are missing.
        """
        analysis = self.compile(*arguments).cost_analysis() or {}
        kinds = {"flops": "flops", "bytes": "bytes accessed"}
        return {kind: analysis[key] for kind, key in kinds.items() if key in analysis}

    def fetch(
        self, params: PyTree, keys: Array, inputs: PyTree, *, everywhere: bool = False
    ) -> tuple[PyTree, float]:
        """Returns the result for a batch, on the host, and the seconds it took without compiling.

        Over a mesh, each process gives the keys and inputs of its own rows, and gets their results.
        With `everywhere`, each gives all rows instead, and gets all results.
        """
        rows = None
        if self.mesh is None:
            batch = (keys, inputs)
        elif everywhere:
            batch = _over(
                keys, inputs, functools.partial(partitioning.divided_rows, mesh=self.mesh)
            )
        else:
            batch = _over(keys, inputs, functools.partial(_own_rows, mesh=self.mesh))
            rows = partitioning.share(self.mesh).rows(batch[0].shape[0])
        execute = self.compile(params, *batch)
        start = time.perf_counter()
        output = jax.device_get(execute(params, *batch))
        if rows is not None:  # all rows have been gathered once
            output = jax.tree.map(lambda x: x[rows] if x.ndim else x, output)
        return output, time.perf_counter() - start


def _in_words(function: Callable) -> str:
    """Returns the name of a function in brackets, '' for one without a name of its own."""
    plan = getattr(function, "keywords", {}).get("plan")
    name = getattr(getattr(function, "func", function), "__name__", "").strip("_")
    alone = ", the target alone" if isinstance(plan, Plan) and not plan.drafts else ""
    return f" ({name.replace('_', ' ')}{alone})" if name.isidentifier() else ""


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Stops Python's garbage collection, which would take a third of the time of a trace.

    Tracing makes many objects, but hardly any cyclic garbage.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


ProgramCall: TypeAlias = tuple[Program, tuple[PyTree, ...]]  # with its arguments


class Way(Protocol):
    """A way to decode a stream of batches: in batches, samples, step by step or refilled rows."""

    @property
    def programs(self) -> int:
        """The number of programs that inputs of one length need, at most."""
        ...

    @property
    def seconds(self) -> float:
        """The seconds of all compilations."""
        ...

    def parts(self, params: PyTree, keys: PyTree, inputs: PyTree) -> Iterator[ProgramCall]:
        """Yields the programs that can be compiled ahead, with the shapes of their arguments."""
        ...

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[PyTree, float]]:
        """Yields the output of each batch, on the host, and its seconds without compiling."""
        ...


class GivenBatch(NamedTuple):
    """A batch of texts for `Way.outputs`."""

    keys: Array  # [B] a key for each row
    inputs: PyTree  # the target's inputs, see `Target.inputs_shape`
    live: np.ndarray  # [B] bool, which rows have a text whose output is wanted


def search(
    params: Params, keys: Array, inputs: PyTree, *, plan: BeamPlan, prefix: Array | None
) -> BeamOutput:
    """Calls `beam_search`; the keys are not used, because it draws nothing."""
    return beam_search(params, inputs, plan, prefix=prefix)


class DecodeProgram(Program):
    """The program of `decode`, or of `beam_search`, with a plan.

    It is (params, keys [B], inputs) -> DecodeOutput or BeamOutput.
    """

    programs = 1

    def __init__(
        self,
        plan: AnyPlan,
        *,
        mesh: Mesh | None = None,
        prefix: Array | None = None,
        function: Callable | None = None,
    ):
        if function is None:
            function = search if isinstance(plan, BeamPlan) else decoding.decode
        super().__init__(functools.partial(function, plan=plan, prefix=prefix), mesh=mesh)
        self._target = plan.target

    def fetch(
        self, params: PyTree, keys: Array, inputs: PyTree, *, everywhere: bool = False
    ) -> tuple[PyTree, float]:
        """Calls `Program.fetch`, and raises NonFiniteLogits for a row that has failed."""
        output, seconds = super().fetch(params, keys, inputs, everywhere=everywhere)
        decoding.check_finite(output, self._target)
        return output, seconds

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[PyTree, float]]:
        """Yields the result of `fetch` for each batch, computed only when it is needed."""
        for batch in batches:
            yield self.fetch(params, batch.keys, batch.inputs)

    def parts(self, params: PyTree, keys: PyTree, inputs: PyTree) -> Iterator[ProgramCall]:
        """Yields this program with its arguments."""
        yield self, (params, keys, inputs)


def batch_shapes(
    target: Target, rows: int, length: int, mesh: Mesh | None = None
) -> tuple[jax.ShapeDtypeStruct, PyTree]:
    """Returns the shapes of a batch for `DecodeProgram`: of keys [rows], and of inputs."""
    sharding = None if mesh is None else partitioning.rows(mesh)
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        target.inputs_shape(rows, length),
    )
    return decoding.abstract_keys(rows, sharding), inputs


class _InTwoParts:
    """Base of ways to decode that have one program for prefill and another for the rest."""

    programs = 2

    def __init__(self, plan: Plan, prefix: Array | None, rest: Program):
        self._target, self._rest = plan.target, rest
        self._prefill = Program(functools.partial(decoding.prefill, plan=plan, prefix=prefix))

    @property
    def seconds(self) -> float:
        """The seconds of all compilations."""
        return self._prefill.seconds + self._rest.seconds


class Sampled(_InTwoParts):
    """Decodes batches as `DecodeProgram` does, and reads the inputs of all samples of a text once.

    `together` samples of each text are rows of one call.
    """

    def __init__(self, plan: Plan, together: int = 1, *, prefix: Array | None = None):
        super().__init__(plan, prefix, Program(functools.partial(decoding.sample, plan=plan)))
        self._together = together

    def parts(self, params: PyTree, keys: PyTree, inputs: PyTree) -> Iterator[ProgramCall]:
        """Yields the programs of a batch, each with its arguments or their shapes."""
        yield self._prefill, (params, keys, inputs)
        state = _shapes(self._prefill.lower(params, keys, inputs))
        yield self._rest, (params, decoding.abstract_keys(self._together * len(keys)), state)

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[DecodeOutput, float]]:
        """Yields (output, seconds) for each batch.

        Consecutive batches with the same `inputs` object are samples of the same texts. They share
        one prefill, and each is counted an equal part of the time of its call.
        """
        for _, samples in itertools.groupby(batches, lambda batch: id(batch.inputs)):
            state = None
            while batch := list(itertools.islice(samples, self._together)):
                keys, inputs = [sample.keys for sample in batch], batch[0].inputs
                keys += keys[-1:] * (self._together - len(keys))
                of_all = jnp.stack(keys, axis=1).reshape(-1)
                prefill = self._prefill.compile(params, keys[0], inputs)
                sample = self._rest.compile(params, of_all, _shapes(prefill))
                start = time.perf_counter()
                state = prefill(params, keys[0], inputs) if state is None else state
                output = jax.device_get(sample(params, of_all, state))
                seconds = (time.perf_counter() - start) / len(batch)
                for i in range(len(batch)):
                    yield self._sample(output, i), seconds

    def _sample(self, output: DecodeOutput, number: int) -> DecodeOutput:
        """Returns the output of sample `number` of those that were decoded together."""
        rows = slice(number, None, self._together)
        output = jax.tree.map(lambda x: x[rows] if x.ndim else x, output)
        trace = output.trace.replace(steps=output.trace.calls.max())
        output = output._replace(trace=trace)
        decoding.check_finite(output, self._target)
        return output


class Stepwise(_InTwoParts):
    """Decodes batches as `DecodeProgram` does, one target call at a time.

    `watch` is called with the texts so far, on the host, after each target call.
    """

    def __init__(
        self,
        plan: Plan,
        watch: Callable[[DecodeOutput], None] = lambda output: None,
        *,
        prefix: Array | None = None,
    ):
        step = Program(functools.partial(decoding.step, plan=plan), donate=[1])
        super().__init__(plan, prefix, step)
        self._watch = watch

    def parts(self, params: PyTree, keys: PyTree, inputs: PyTree) -> Iterator[ProgramCall]:
        """Yields the programs of a batch, each with its arguments or their shapes."""
        yield self._prefill, (params, keys, inputs)
        yield self._rest, (params, _shapes(self._prefill.lower(params, keys, inputs)))

    def steps(self, params: PyTree, batch: GivenBatch) -> Iterator[DecodeOutput]:
        """Yields the texts so far, on the host: after the prefill, and after each target call.

        Raises:
          NonFiniteLogits: a row has failed.
        """
        prefill, step = self._compiled(params, batch)
        state = prefill(params, batch.keys, batch.inputs)
        while True:
            output = jax.device_get(decoding.output(state))
            decoding.check_finite(output, self._target)
            yield output
            if not np.any(state.active):
                return
            state = step(params, state)

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[DecodeOutput, float]]:
        """Yields (output, seconds) for each batch."""
        for batch in batches:
            self._compiled(params, batch)
            start = time.perf_counter()
            for number, output in enumerate(self.steps(params, batch)):
                if number:
                    self._watch(output)
            yield output, time.perf_counter() - start

    def _compiled(
        self, params: PyTree, batch: GivenBatch
    ) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        prefill = self._prefill.compile(params, batch.keys, batch.inputs)
        return prefill, self._rest.compile(params, _shapes(prefill))


def _shapes(program: jax.stages.Lowered | jax.stages.Compiled) -> PyTree:
    """Returns the shapes of a program's results."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.out_info)


def _shape(arguments: PyTree) -> Hashable:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _over(keys: Array, inputs: PyTree, put: Callable[[PyTree], PyTree]) -> tuple[Array, PyTree]:
    """Returns keys and inputs as arrays over a mesh, which `put` makes."""
    data = put(jax.random.key_data(keys))
    return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(keys))), put(inputs)


def _own_rows(tree: PyTree, mesh: Mesh) -> PyTree:
    """Returns this process's rows as a part of arrays of all rows."""
    return jax.tree.map(lambda x: partitioning.from_local_rows(np.asarray(x), mesh), tree)
