"""The order of a benchmark's timings.

All modes and parts are timed alternately in one process, so a slow minute affects all of them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from specdec.common import progress
from specdec.common.environment import environment
from specdec.common.timer import Clock, timed
from specdec.decoding import check_finite, naming_texts, row_keys
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.program import Program
from specdec.measure.file import File, Generation, Record, Timing
from specdec.measure.parts import Key, Workload, name_of
from specdec.measure.summary import BenchmarkSummary, Parts, summarize
from specdec.models.contract.inputs import tokens_of
from specdec.types import DecodeOutput, PyTree

T = TypeVar("T")
WARM_UPS = 3
TEXTS_PER_TIMING = 4  # parts are timed at every fourth text, as only shapes change their times


def measure_by_text(
    workload: Workload,
    trees: Mapping[str, PyTree],
    texts: Mapping[int, np.ndarray],
    *,
    seed: int,
    repeats: int,
    skip: Collection[tuple[int, int]] = (),
    clock: Clock = time.perf_counter,
) -> Iterator[Iterator[Generation | Timing]]:
    """Times decoding of `texts` (index -> inputs [1, S]) alternately with and without speculation.

    Yields an iterator of records for each (repeat, index) not in `skip`, with keys of its own."""
    trees, on_device = jax.device_put((trees, dict(texts)))
    params = workload.params(trees)

    def records_of(
        repeat: int, position: int, text: int, inputs: jax.Array
    ) -> Iterator[Generation | Timing]:
        # Parts come first, so a text that has been generated in all modes is complete.
        if position % TEXTS_PER_TIMING == 0:
            for part, seconds in _timed_parts(clock, workload, trees, inputs):
                yield Timing(part, text, repeat, seconds, workload.parts[part].steps)
        keys = _keys(seed, text, repeat)
        modes = list(workload.generations)
        for mode in modes if (position + repeat) % 2 == 0 else reversed(modes):
            program = workload.generations[mode]
            output, seconds = _timed(clock, program, params[mode], keys, inputs)
            about = {"mode": mode, "text": text, "repeat": repeat, "seconds": seconds}
            yield _generation(workload, output, **about)

    _warm_up(workload, trees, seed, on_device)
    for repeat in range(repeats):
        for position, (text, inputs) in enumerate(on_device.items()):
            if (repeat, text) not in skip:
                yield records_of(repeat, position, text, inputs)


def _warm_up(
    workload: Workload, trees: Mapping[str, PyTree], seed: int, texts: Mapping[int, PyTree]
) -> None:
    """Runs each mode a few times without a record, because first runs are slower."""
    for text in list(texts)[:1]:
        for number in range(1, WARM_UPS + 1):
            with progress.stage("warming up", f"warming up, round {number} of {WARM_UPS}"):
                for mode, params in workload.params(trees).items():
                    generate = workload.generations[mode]
                    jax.block_until_ready(generate(params, _keys(seed, text), texts[text]))
                list(_timed_parts(lambda: 0.0, workload, trees, texts[text]))


def _keys(seed: int, text: int, repeat: int = 0) -> jax.Array:
    return jax.block_until_ready(row_keys(seed, jnp.array([text]), repeat))


def _timed_parts(clock, workload: Workload, trees, inputs) -> Iterator[tuple[Key, float]]:
    results: dict[Key | None, PyTree] = {None: inputs}
    for name, part in workload.parts.items():
        results[name], seconds = _timed(clock, part.program, trees, results[part.source])
        yield name, seconds


def _timed(clock, program: Program, *arguments) -> tuple[PyTree, float]:
    return timed(program.warmed(*arguments), *arguments, clock=clock)


def _generation(
    workload: Workload, output: DecodeOutput | BeamOutput, *, text: int, **about: Any
) -> Generation:
    """Returns the record of an output [1, N]; raises NonFiniteLogits if it has NaN or inf."""
    with naming_texts([text]):
        check_finite(output, workload.plan.target)
    output = jax.device_get(output)
    if isinstance(output, BeamOutput):
        plan = workload.alone if about.get("mode") == "alone" else workload.plan
        return Generation.of_search(output, 0, plan.longest_draft, text=text, **about)
    return Generation.of(output, 0, text=text, **about)


@dataclasses.dataclass
class Measurement:
    """A workload, compiled for the shape of its texts; several measurements may be interleaved."""

    workload: Workload
    trees: Mapping[str, PyTree]  # name -> parameters, see `benchmarking.trees_of`
    texts: Mapping[int, PyTree]  # example index -> inputs [1, S]
    file: File
    seed: int
    repeats: int  # of each text

    def __post_init__(self):
        self._length = tokens_of(next(iter(self.texts.values()))).shape[1]
        self._compile_seconds = self.workload.compile(self.trees, self._length)

    @property
    def remaining(self) -> int:
        """The number of generations that have not been measured yet."""
        units = self.repeats * len(self.texts) - len(self.file.done)
        return len(self.workload.generations) * units

    def by_text(self) -> Iterator[Iterator[Record]]:
        """Measures the texts that the file lacks, as `measure_by_text`, and writes all records."""
        about: dict[str, Any] = {"seed": self.seed, "repeats": self.repeats, "skip": self.file.done}
        units = measure_by_text(self.workload, self.trees, self.texts, **about)
        return (self._written(records) for records in units)

    def decode_elsewhere(self, texts: Mapping[int, PyTree], split: str) -> None:
        """Decodes texts of `split`, if the file lacks them, to predict the times of the others."""
        params = jax.device_put(self.workload.params(self.trees)["speculative"])
        for text, inputs in texts.items():
            if (split, text) not in self.file.elsewhere:
                program = self.workload.generations["speculative"]
                output = program(params, _keys(self.seed, text), inputs)
                self.file.write(_generation(self.workload, output, text=text, split=split))

    def profile(self, path: str) -> None:
        """Writes an xprof trace of one text, decoded once in each mode, to the folder `path`."""
        workload, trees = self.workload, jax.device_put(self.trees)
        text, inputs = next(iter(self.texts.items()))
        _warm_up(workload, trees, self.seed, {text: inputs})
        with jax.profiler.trace(path):
            for mode, params in workload.params(trees).items():
                with jax.profiler.TraceAnnotation(mode):
                    generate = workload.generations[mode]
                    jax.block_until_ready(generate(params, _keys(self.seed, text), inputs))

    def conclude(self, about: Mapping[str, object], split: str | None = None) -> BenchmarkSummary:
        """Writes the report with the settings `about`, and returns the figures of all records."""
        plan = self.workload.plan
        read = self.workload.alone.target.read_by_decode(self.trees["alone"])
        summary = summarize(
            self.file.records(split),
            parts=parts_of(plan),
            gamma=plan.gamma,
            same_output=plan.same_output,
            exact=plan.exact,
            beams=plan.beams if isinstance(plan, BeamPlan) else 0,
            step_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(read)),
        )
        costs = self.workload.costs(self.trees, self._length)
        report = {
            "environment": environment(),
            "run": {**described(plan), **about, "costs": _named(costs)},
            "compile_seconds": _named(self._compile_seconds),
            **summary.record(),
        }
        self.file.conclude(report)
        return summary

    def _written(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self.file.write(record)
            yield record


def _named(figures: Mapping[Key, T]) -> dict[str, T]:
    """Returns the same mapping with the parts' names in files as keys."""
    return {name_of(key): figure for key, figure in figures.items()}


def parts_of(plan: AnyPlan) -> Parts | None:
    """Returns `plan.parts`; None if it lists no call of one of the drafter's models."""
    if isinstance(plan, BeamPlan):
        return plan.parts
    called = {"target", *(role for role, _, _ in plan.parts())}
    partial = plan.drafter.partial_models(plan.target)  # its models run within calls of `parts`
    return plan.parts if partial or called >= plan.models().keys() else None


def described(plan: AnyPlan) -> dict[str, object]:
    """Returns the settings of a plan by name, for the report."""
    if isinstance(plan, BeamPlan):
        rule = {"rule": repr(plan.rule), "best_only": plan.best_only}
        drafter = {"drafter": type(plan.drafter).__name__, "draft_beams": plan.draft_beams}
        return {"gamma": plan.gamma, "beams": plan.beams, **drafter, **rule}
    return {
        "gamma": plan.gamma,
        "drafter": type(plan.drafter).__name__,
        "schedule": repr(plan.schedule),
        "verifier": repr(plan.verifier),
        "sampling": repr(plan.sampling),
    }
