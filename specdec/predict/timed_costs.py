"""Measures the costs of model calls on the devices of a run."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from specdec.common import progress
from specdec.common.timer import Clock, interleaved
from specdec.engine import Store
from specdec.measure import estimator
from specdec.measure.alphas import Accepted
from specdec.measure.parts import (
    MEMORY,
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    Key,
    TimedPart,
    Turn,
    by_turns,
    timed_parts,
)
from specdec.models import partitioning
from specdec.models.contract.model import Model, Target
from specdec.models.placement.layouts import Layout
from specdec.plan import Plan
from specdec.predict.costs import Calls, Costs
from specdec.texts.measured_run import Run
from specdec.types import PyTree

ROUNDS = 7  # timings of each part, alternating with the other parts

Name = TypeVar("Name", bound=Hashable)


def of_run(
    run: Run, texts: Sequence[Accepted], plans: Mapping[Name, Plan], rows: int = 1
) -> dict[Name, Costs]:
    """Returns name -> measured costs of plans, for batches of `rows` texts per data shard."""
    mesh = run.placement.mesh
    plans = {name: run.placement.laid_out(plan, rows) for name, plan in plans.items()}
    alone = run.placement.laid_out(run.plan.baseline(), rows)
    longest = run.data.lengths["inputs"]
    if mesh is not None:
        rows *= mesh.shape[partitioning.DATA]
    tokens = np.full([rows, longest], run.plan.target.pad_id, np.int32)
    for row, text in zip(tokens, itertools.cycle(texts), strict=False):
        ids = text.inputs[:longest]
        row[: len(ids)] = ids
    # The values of images and sounds do not change the time, so zeros replace them.
    inputs: PyTree = jax.tree.map(
        lambda x: tokens if x.dtype == np.int32 else np.zeros(x.shape, x.dtype),
        run.plan.target.inputs_shape(rows, longest),
    )
    if mesh is not None:
        inputs = partitioning.divided_rows(inputs, mesh)
    store = Store(run.placement)
    placed: dict[tuple[Layout | None, str], PyTree] = {}
    paths = {"alone": run.checkpoint_path, **run.paths()}

    def tree_of(role: str, model: Target) -> PyTree:
        key = model.layout.of_parameters if isinstance(model, Model) else None, paths[role]
        if key not in placed:
            tree = store.read(model, paths[role])
            placed[key] = jax.device_put(tree) if mesh is None else tree
        return placed[key]

    return timed(plans, alone, tree_of, inputs)


def timed(
    plans: Mapping[Name, Plan],
    alone: Plan,
    tree_of: Callable[[str, Target], PyTree],
    inputs: PyTree,
    *,
    clock: Clock = time.perf_counter,
) -> dict[Name, Costs]:
    """Returns name -> costs of plans: medians of the seconds of each part, timed alternately.

    `tree_of(role, model)` reads parameters, and `inputs` is a batch for the target."""
    slots = max(plan.capacity for plan in plans.values())
    longest = max(plans, key=lambda name: plans[name].longest_draft)
    runs: dict[Hashable, _Run] = {}
    keys: dict[Name, dict[Key, Hashable]] = {name: {} for name in plans}
    for name, plan in plans.items():
        for part, program in timed_parts(plan, alone, slots).items():
            if part in (MEMORY, MEMORY_READ) or (isinstance(part, Turn) and name != longest):
                continue
            key = keys[name][part] = _identity(plan, part)
            if key not in runs:
                models = _models(plan, alone, part)
                trees = {role: tree_of(role, model) for role, model in models.items()}
                source = program.source
                argument = inputs if source is None else runs[keys[name][source]].result
                runs[key] = _Run(program, trees, argument)
    medians = _medians(runs, clock)
    seconds = {
        name: {part: medians[key] for part, key in parts.items()} for name, parts in keys.items()
    }
    times, source = by_turns(seconds[longest]), f"measured here, medians of {ROUNDS} turns"
    return {name: estimator.costs_of(known, source, times) for name, known in seconds.items()}


def _models(plan: Plan, alone: Plan, part: Key) -> Mapping[str, Target]:
    if part == PREFILL_ALONE or (isinstance(part, Calls) and part.role == "alone"):
        return {"alone": alone.target}
    models = plan.models()
    if isinstance(part, Calls) and part.role not in plan.own_calls():
        return {plan.holder(part.role): models[plan.holder(part.role)]}
    return models


def _identity(plan: Plan, part: Key) -> Hashable:
    """Returns a key that is equal for two plans if the part runs the same program for both."""
    models, views = plan.models(), plan.drafter.views()
    if isinstance(part, Turn):
        return part, plan
    if isinstance(part, Calls) and part.role != "alone":
        role = plan.holder(part.role)
        return part, models[role], views.get(role), plan if part.role in plan.own_calls() else None
    return part, (*models.items(), *views.items()) if part == PREFILL else None


class _Run:
    def __init__(self, part: TimedPart, trees: Mapping[str, PyTree], argument: PyTree):
        self.steps, self._program, self._arguments = part.steps, part.program, (trees, argument)

    @functools.cached_property
    def result(self) -> PyTree:
        return self._program(*self._arguments)

    def ready(self) -> Callable[[], object]:
        """Returns a function that runs the compiled and warmed-up program once."""
        return functools.partial(self._program.warmed(*self._arguments), *self._arguments)


def _medians(runs: Mapping[Hashable, _Run], clock: Clock) -> dict[Hashable, float]:
    """Returns key -> median seconds of one model call of a part, over alternating runs."""
    progress.expect_programs(len(runs), exactly=True)
    for run in runs.values():
        run.ready()  # compiled here, so that the remaining time is that of calls
    ready = {key: run.ready for key, run in runs.items()}
    with progress.bar("timing parts", (1 + ROUNDS) * len(runs), "part") as bar:
        seconds = interleaved(ready, ROUNDS, warm_ups=1, clock=clock, done=bar.update)
    return {key: statistics.median(seconds[key]) / run.steps for key, run in runs.items()}
