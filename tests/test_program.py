"""Programs that several threads use: pytest tests/test_program.py"""

from __future__ import annotations

import contextlib
import gc
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import Params, Plan, decode, row_keys
from specdec.decoding import program as programs
from specdec.decoding import refilling
from specdec.decoding.program import (
    DecodeProgram,
    GivenBatch,
    Program,
    Sampled,
    Stepwise,
    compiler_options,
    executable,
)
from specdec.decoding.refilling import Refilled
from specdec.models import partitioning
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import Constant, TableTarget
from specdec.verifiers import SpeculativeSampling


@pytest.fixture
def meeting(monkeypatch):
    """Two threads that end a measurement of one second wait for each other before they add it."""
    barrier, own = threading.Barrier(2), threading.local()

    def perf_counter():
        ends = own.ends = not getattr(own, "ends", True)
        if ends:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(timeout=5)
        return float(ends)

    clock = types.SimpleNamespace(perf_counter=perf_counter)
    monkeypatch.setattr(programs, "time", clock)


def test_seconds_of_two_threads_are_added(meeting):
    program = Program(lambda params, x: params + x)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda size: program.lower(1.0, jnp.zeros(size)), (2, 3)))
    assert program.seconds == 2.0


def test_two_threads_compile_a_shape_once():
    traced, compiled = [], []
    begun = threading.Barrier(2)

    class Counted(Program):
        def _lower(self, *arguments):
            traced.append(threading.get_ident())
            return super()._lower(*arguments)

        def _compiled(self, lowered):
            compiled.append(threading.get_ident())
            return super()._compiled(lowered)

    program = Counted(lambda params, x: params + x)

    def run(value):
        begun.wait()
        return float(program(1.0, jnp.full([2], value))[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (1.0, 2.0))) == [2.0, 3.0]
    assert len(traced) == len(compiled) == 1
    program.begin_to_compile(1.0, jnp.zeros([3]))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda value: program(1.0, jnp.full([3], value)), (1.0, 2.0)))
    assert len(traced) == len(compiled) == 2


def test_python_collects_no_garbage_while_it_traces():
    collects = []

    def traced(params, x):
        collects.append(gc.isenabled())
        if x.shape == (3,):
            raise ValueError("does not fit")
        return params + x

    program = Program(traced)
    program.lower(1.0, jnp.zeros([2]))
    with pytest.raises(ValueError, match="does not fit"):
        program.lower(1.0, jnp.zeros([3]))
    assert collects == [False, False] and gc.isenabled()


OFF = {
    "xla_tpu_offload_gather_to_sparsecore": "false",
    "xla_tpu_offload_all_supported_gathers_to_sparsecore": "false",
}


@pytest.mark.parametrize(
    "platform, kind, options",
    [
        ("tpu", "TPU v3", {}),
        ("tpu", "TPU v4", OFF),
        ("tpu", "TPU v5 lite", {}),
        ("tpu", "TPU v5", OFF),
        ("tpu", "TPU v5p", OFF),
        ("tpu", "TPU v6 lite", OFF),
        ("tpu", "TPU7x", OFF),
        ("cpu", "cpu", {}),
        ("gpu", "NVIDIA H200", {}),
    ],
)
def test_lookups_stay_in_the_program_where_there_is_a_sparse_core(platform, kind, options):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    assert compiler_options(device) == options


def test_every_executable_has_the_options_of_its_device(monkeypatch):
    """Of one device, of a mesh, of the mesh that is in force, and of both parts of a program."""
    devices, seen, compiled = jax.devices(), [], jax.stages.Lowered.compile
    monkeypatch.setattr(programs, "compiler_options", lambda device: seen.append(device) or {})

    def compile_(lowered, compiler_options=None):
        assert compiler_options is None  # of a CPU
        return compiled(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_)
    add = lambda params, x: params + x  # noqa: E731
    over = partitioning.make_mesh(1, devices[2:4]), partitioning.make_mesh(1, devices[5:6])
    Program(add).compile(1.0, jnp.zeros([2]))
    Program(add, mesh=over[0]).compile(1.0, jnp.zeros([2]))
    with jax.set_mesh(over[1]):
        Program(add).compile(1.0, jnp.zeros([2]))
    assert seen == [devices[0], devices[2], devices[5]]
    target = TableTarget(6)
    plan = Plan(target, Constant(2), SpeculativeSampling(), Fixed(1), Sampling(), 2)
    given = (
        Params(target.init(jax.random.key(0))),
        row_keys(0, jnp.arange(1)),
        jnp.ones([1, 2], int),
    )
    for way in (DecodeProgram(plan), Stepwise(plan, print)):
        for program, arguments in way.parts(*given):
            program.compile(*arguments)
    assert seen[3:] == [devices[0]] * 3


def test_an_option_that_a_compiler_lacks_is_left_out_and_told():
    tried = []

    class Lowered:
        def compile(self, compiler_options):
            tried.append(compiler_options)
            for name in unknown:
                if name in (compiler_options or {}):
                    said = f"INVALID_ARGUMENT: No such compile option: '{name}'"
                    raise jax.errors.JaxRuntimeError(said)
            return "compiled"

    tpu = types.SimpleNamespace(platform="tpu", device_kind="TPU7x")
    first, second = OFF
    unknown = [second]
    with pytest.warns(UserWarning, match=f"no option {second},"):
        assert executable(Lowered(), tpu) == "compiled"
    assert tried == [OFF, {first: "false"}]
    tried, unknown = [], [first, second]
    with pytest.warns(UserWarning):
        assert executable(Lowered(), tpu) == "compiled"
    assert tried == [OFF, {second: "false"}, None] and len(OFF) == 2

    class Full:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")

    with pytest.raises(jax.errors.JaxRuntimeError, match="too large"):
        executable(Full(), tpu)


def test_a_target_is_traced_only_where_it_runs():
    widths = []

    class Seen(TableTarget):
        def decode(self, params, tokens, cache, **others):
            widths.append(tokens.shape[1])
            return super().decode(params, tokens, cache, **others)

    target = Seen(6)
    plan = Plan(target, Constant(2), SpeculativeSampling(), Fixed(3), Sampling(), 4)
    params = Params(target.init(jax.random.key(0)))
    DecodeProgram(plan).lower(params, row_keys(0, jnp.arange(2)), jnp.ones([2, 2], int))
    assert set(widths) == {4}


def test_a_search_begins_with_its_prefix(monkeypatch):
    monkeypatch.setattr(programs, "beam_search", lambda *given, **more: (*given, more))
    given: Any = ("weights", "keys", "inputs"), {"plan": "plan", "prefix": "prefix"}
    found = programs.search(*given[0], **given[1])
    assert found == ("weights", "inputs", "plan", {"prefix": "prefix"})


def test_a_watched_batch_is_decoded_until_its_last_row_has_ended():
    target, lengths = TableTarget(6, classes=3), []
    plan = Plan(target, Constant(2), SpeculativeSampling(), Fixed(1), Sampling(), 4)
    given = (
        Params(target.init(jax.random.key(0))),
        row_keys(0, jnp.arange(8)),
        jnp.ones([8, 2], int),
    )
    right = decode(*given, plan)
    way = Stepwise(plan, lambda output: lengths.append(output.length.tolist()))
    ((output, _),) = way.outputs(given[0], [GivenBatch(*given[1:], np.ones(8, bool))])
    assert output.tokens.tolist() == right.tokens.tolist()
    assert lengths[-1] == right.length.tolist() and len(set(lengths[-1])) > 1


@pytest.fixture
def clock(monkeypatch):
    """Each compilation takes 100 seconds, and each run of a compiled program 6."""
    now = [0.0]
    real_compile, real_call = jax.stages.Lowered.compile, jax.stages.Compiled.__call__

    def compiled(self, *given, **options):
        now[0] += 100
        return real_compile(self, *given, **options)

    def run(self, *given, **options):
        now[0] += 6
        return real_call(self, *given, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(jax.stages.Compiled, "__call__", run)
    time = types.SimpleNamespace(perf_counter=lambda: now[0])
    for module in (programs, refilling):
        monkeypatch.setattr(module, "time", time)
    return now


def test_costs_are_those_of_a_product():
    """[4, 8] times [8, 16] has 4 * 8 * 16 products and sums, and reads and writes float32."""
    program = Program(lambda params, x: x @ params)
    found = program.costs(jnp.ones([8, 16]), jnp.ones([4, 8]))
    assert found == {"flops": 2 * 4 * 8 * 16, "bytes": 4 * (4 * 8 + 8 * 16 + 4 * 16)}


@pytest.mark.parametrize("size, runs", [(4, 1), (5, 0)])
def test_small_parameters_are_warmed_up(size, runs, clock, monkeypatch):
    """Those that do not fit in the processor's cache come from memory in any case."""
    monkeypatch.setattr(programs, "CACHED", 20)
    program, params = Program(lambda params, x: params + x), jnp.ones([size], jnp.float32)
    program.warmed(params, jnp.ones([1]))
    assert clock[0] == 100 + 6 * runs


TEXTS = np.array([[2, 3, 4], [5, 2, 0], [3, 0, 0], [4, 4, 0]], np.int32)


def batches_of(samples: int, rows: int = 2):
    """Yields batches of some texts, each with all its samples, whose inputs are one object."""
    for first in range(0, len(TEXTS), rows):
        inputs = jnp.asarray(TEXTS[first : first + rows])
        for sample in range(samples):
            keys = row_keys(0, first + jnp.arange(rows), sample)
            yield GivenBatch(keys, inputs, np.ones(rows, bool))


def test_the_seconds_of_a_batch_are_those_of_its_runs(clock):
    """Not those of compiling; samples of one call share its time, and a text is read once."""
    target = TableTarget(6, classes=3)
    plan = Plan(target, Constant(2), SpeculativeSampling(), Fixed(1), Sampling(), 4)
    params = Params(target.init(jax.random.key(0)))
    plain = DecodeProgram(plan)
    assert [seconds for _, seconds in plain.outputs(params, batches_of(1))] == [6.0, 6.0]
    assert plain.seconds == 100.0
    one, three = Sampled(plan), Sampled(plan, 3)
    assert [seconds for _, seconds in one.outputs(params, batches_of(2))] == [12.0, 6.0] * 2
    assert [seconds for _, seconds in three.outputs(params, batches_of(3))] == [4.0] * 6
    # The last call of a text has one sample.
    assert [seconds for _, seconds in three.outputs(params, batches_of(4))] == [
        4.0,
        4.0,
        4.0,
        6.0,
    ] * 2
    assert one.seconds == three.seconds == 200.0


def test_the_seconds_of_refilled_rows_add_up(clock):
    """Inputs have two widths, so that three programs are compiled; each batch has its own time."""
    target = TableTarget(6, classes=3)
    plan = Plan(target, Constant(2), SpeculativeSampling(), Fixed(1), Sampling(), 4)
    params = Params(target.init(jax.random.key(0)))
    program = Refilled(plan, 2, (1, 3))
    found = list(program.outputs(params, batches_of(1, rows=1)))
    each = [seconds for _, seconds in found]
    assert program.seconds == 300.0 and len(each) == 4
    assert sum(each) == 12.0 * len(TEXTS), "one text at a time is read, and begins a run"
    ((output, seconds),) = program.outputs(params, [next(batches_of(1))])
    right = [text.tokens[0].tolist() for text, _ in found[:2]]
    assert output.tokens.tolist() == right and seconds == 12.0 * 2
