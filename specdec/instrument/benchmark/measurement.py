"""A workload with its parameters and texts, and the file of its measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import jax

from specdec.common.environment import environment
from specdec.decoding.beam_plan import BeamPlan
from specdec.instrument.benchmark.file import File, Record
from specdec.instrument.benchmark.measure import decode_elsewhere, measure_by_text, profile
from specdec.instrument.benchmark.parts import Key, name_of
from specdec.instrument.benchmark.summary import BenchmarkSummary, Parts, summarize
from specdec.instrument.benchmark.workload import Workload
from specdec.models.contract.inputs import tokens_of
from specdec.plan import Plan
from specdec.types import PyTree


class Measurement:
    """A workload, compiled for some texts; several measurements may be interleaved."""

    def __init__(
        self,
        workload: Workload,
        trees: Mapping[str, PyTree],
        texts: Mapping[int, PyTree],
        file: File,
        *,
        seed: int,
        repeats: int,
    ):
        self.workload, self.file = workload, file
        self._trees, self._texts, self._seed, self._repeats = trees, texts, seed, repeats
        self._length = tokens_of(next(iter(texts.values()))).shape[1]
        self._compile_seconds = workload.compile(trees, self._length)

    @property
    def left(self) -> int:
        """The number of generations that have not been measured yet."""
        units = self._repeats * len(self._texts) - len(self.file.done)
        return len(self.workload.generations) * units

    def by_text(self) -> Iterator[Iterator[Record]]:
        """Measures what is left, see `measure_by_text`, and writes each record to the file."""
        units = measure_by_text(
            self.workload,
            self._trees,
            self._texts,
            seed=self._seed,
            repeats=self._repeats,
            skip=self.file.done,
        )
        return (self._written(records) for records in units)

    def decode_elsewhere(self, texts: Mapping[int, PyTree], split: str) -> None:
        """Decodes the texts of another split, unless they are in the file."""
        done = self.file.elsewhere
        new = {text: inputs for text, inputs in texts.items() if (split, text) not in done}
        for record in decode_elsewhere(
            self.workload, self._trees, new, seed=self._seed, split=split
        ):
            self.file.write(record)

    def profile(self, path: str) -> None:
        """Writes an xprof trace, see `profile`."""
        profile(self.workload, self._trees, self._texts, seed=self._seed, path=path)

    def conclude(self, about: Mapping[str, object], split: str | None = None) -> BenchmarkSummary:
        """Writes the report, and returns the figures of everything that was measured."""
        plan = self.workload.plan
        read = self.workload.alone.target.read_by_decode(self._trees["alone"])
        summary = summarize(
            self.file.records(split),
            parts=parts_of(plan),
            gamma=plan.gamma,
            same_output=plan.same_output,
            exact=plan.exact,
            beams=plan.beams if isinstance(plan, BeamPlan) else 0,
            step_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(read)),
        )
        costs = self.workload.costs(self._trees, self._length)
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


T = TypeVar("T")


def _named(figures: Mapping[Key, T]) -> dict[str, T]:
    """Returns figures by the names that parts have in files."""
    return {name_of(key): figure for key, figure in figures.items()}


def parts_of(plan: Plan | BeamPlan) -> Parts | None:
    """Returns the model calls of an iteration.

    The result is None if the drafter has a model and does not say when it is called.
    """
    if isinstance(plan, BeamPlan):
        return plan.parts
    known = {"target", *(role for role, _, _ in plan.parts())}
    within = plan.drafter.partial_models(plan.target)  # a head is a part of such a call
    return plan.parts if within or known >= plan.models().keys() else None


def described(plan: Plan | BeamPlan) -> dict[str, object]:
    """Returns the facts about a plan, for reports."""
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
