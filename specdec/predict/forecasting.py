"""The speed-up at every draft length, from recorded texts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from specdec.common.values import UsageError
from specdec.engine import Store
from specdec.measure import opinions, recorded_texts
from specdec.measure.alphas import Accepted
from specdec.models import partitioning
from specdec.models.contract.model import Model, Target
from specdec.plan import Plan
from specdec.predict import promise, recorded, schedule_replay
from specdec.predict.costs import Costs
from specdec.predict.measured_costs import measured as measured_parts
from specdec.predict.promise import Forecast
from specdec.predict.schedule_replay import SAMPLES, Replayed
from specdec.schedules import Fixed
from specdec.texts.measured_run import Run, Variant
from specdec.types import PyTree
from specdec.verifiers import Block, SpeculativeSampling

Name = TypeVar("Name", bound=Hashable)


class Forecasting(NamedTuple):
    """Variants that are ready for prediction."""

    variants: Sequence[Variant]  # the runs
    alphas: Sequence[float | None]  # of each variant, if the recorded texts are of its own drafter
    texts: Sequence[Accepted]  # the recorded texts
    gammas: Sequence[int]  # draft lengths, ascending
    given: Costs | None  # the costs, None to measure them here
    rows: int  # texts that are decoded together

    @classmethod
    def of(
        cls,
        variants: Iterable[Variant],
        path: str,
        gammas: Sequence[int],
        *,
        asked: bool,
        given: Costs | None,
        rows: int,
    ) -> Forecasting:
        """Returns the variants, with the recorded texts of a file."""
        texts = recorded_texts.read(path)
        if len(texts) < rows:
            raise UsageError(
                f"--batch_size is {rows} and --passes {path} has {len(texts)} texts; give a "
                "smaller one"
            )
        found, alphas = [], []
        for one in variants:
            plan = one.run.plan
            own = recorded_texts.check(path, one, texts, dict(opinions.recorded(plan.drafter)))
            if gammas[-1 if asked else 0] > schedule_replay.longest(plan):
                raise UsageError(
                    f"--gammas has {gammas[-1]} but {schedule_replay.bound(plan)}; give shorter "
                    "drafts"
                )
            _refuse(plan)
            try:
                schedule_replay.check(plan, texts)
            except ValueError as error:
                raise UsageError(f"--passes {path}: {error}") from error
            tokens = sum(text.tokens for text in texts)
            alphas.append(sum(x.accepted["model"][0] for x in texts) / tokens if own else None)
            found.append(one)
        room = min(schedule_replay.longest(one.run.plan) for one in found)
        return cls(found, alphas, texts, [x for x in gammas if x <= room], given, rows)

    def forecasts(self) -> Iterator[tuple[Variant, Forecast]]:
        """Yields the prediction for each plan of each variant."""
        for variant, alpha in zip(self.variants, self.alphas, strict=True):
            costs = self._costs(variant.run)
            for plan in _plans(variant.run.plan, self.gammas):
                calls = replayed(variant.run, plan, self.texts)
                texts = len(self.texts)
                found = promise.forecast(plan, calls, costs, texts, alpha, self.rows)
                yield variant, dataclasses.replace(found, variant=variant.name)

    def _costs(self, run: Run) -> dict[int | None, Costs]:
        """Returns the costs of all draft lengths up to the longest one, for the oracle."""
        lengths = range(1, self.gammas[-1] + 1)
        if self.given:
            return dict.fromkeys((None, *lengths), self.given)
        plans = {plan.gamma: plan for plan in _plans(run.plan, lengths)}
        return measured(run, self.texts, plans, self.rows)


def _plans(plan: Plan, gammas: Sequence[int]) -> list[Plan]:
    """Returns a plan for each draft length.

    The run's own plan is added if its lengths vary, and is the only one without a drafter.
    """
    if not plan.drafts:
        return [plan]
    fixed = [dataclasses.replace(plan, schedule=Fixed(gamma)) for gamma in gammas]
    return [*fixed, plan] if plan.lengths_vary else fixed


def _refuse(plan: Plan) -> None:
    """Raises UsageError for a plan whose acceptance does not follow from recorded texts."""
    recorded_texts.refuse_adapting(plan.drafter)
    if plan.drafter.paths:
        raise UsageError(
            f"DRAFTER drafts {plan.drafter.paths} paths, and recorded texts tell of one; compare "
            "paths with specdec bench"
        )
    if not plan.verifier.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give one that is")
    draws = any(recorded.kind_of(x) == "ratio" for _, x in opinions.recorded(plan.drafter))
    known = isinstance(plan.verifier, Block | SpeculativeSampling)
    if draws and not plan.sampling.greedy and not known:
        raise UsageError(
            f"VERIFIER is {plan.verifier}, and passes of drawn texts say what block verification "
            "and speculative sampling keep; give verifiers/block.gin"
        )


def measured(
    run: Run, texts: Sequence[Accepted], plans: Mapping[Name, Plan], rows: int = 1
) -> dict[Name, Costs]:
    """Returns the costs of plans on the run's devices for `rows` texts at a time.

    Each plan has its own layout, as in `specdec bench`. Over a mesh, each part of the `data` axis
    has that many texts.
    """
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
    # Pictures and sound take the same time whatever they show.
    inputs: PyTree = jax.tree.map(
        lambda x: tokens if x.dtype == np.int32 else np.zeros(x.shape, x.dtype),
        run.plan.target.inputs_shape(rows, longest),
    )
    if mesh is not None:
        inputs = partitioning.divided_rows(inputs, mesh)
    store = Store(run.placement)
    there: dict[tuple[str | None, str], PyTree] = {}
    paths = {"alone": run.checkpoint_path, **run.paths()}

    def tree_of(role: str, model: Target) -> PyTree:
        key = model.layout if isinstance(model, Model) else None, paths[role]
        if key not in there:
            tree = store.read(model, paths[role])
            there[key] = jax.device_put(tree) if mesh is None else tree
        return there[key]

    return measured_parts(plans, alone, tree_of, inputs)


def replayed(run: Run, plan: Plan, texts: Sequence[Accepted], samples: int = SAMPLES) -> Replayed:
    """Returns the texts decoded again by a plan of the run's models."""
    paths, tables = run.paths(), plan.tables()
    placement = dataclasses.replace(run.placement, mesh=None)
    with jax.set_mesh(None):
        return schedule_replay.replay(
            plan,
            texts,
            vocab_size=plan.models()["target"].vocab_size,
            length=run.data.lengths["inputs"],
            tables={
                role: placement.read(tables[role], paths[role])
                for role in sorted(schedule_replay.needed(plan))
            },
            samples=samples,
            seed=run.data.seed,
        )


def decoded(run: Run, plan: Plan, texts: Sequence[Accepted]) -> Replayed:
    """Returns the calls of the recorded inputs, decoded anew by a plan of the run's models."""
    engine = run.engine.variant(schedule=plan.schedule)
    found: dict[int, Replayed] = {}
    wanted = {text.index for text in texts}
    for batch in run.batches(everywhere=True):
        output, _ = engine.decode(batch, seed=run.data.seed)
        trace = output.trace
        counts: PyTree = output.length, trace.calls, trace.drafted, trace.accepted
        of_rows = Replayed(*counts, source=None)
        for row, index in enumerate(batch.index):
            if index in wanted:
                found[int(index)] = jax.tree.map(lambda x, row=row: x[row], of_rows)
        if len(found) == len(wanted):
            break
    return jax.tree.map(lambda *rows: np.stack(rows), *(found[text.index] for text in texts))
