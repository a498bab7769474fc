"""`specdec forecast`: predicts the speed-up at each draft length from recorded texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from specdec.common.values import UsageError, one_line
from specdec.measure import opinions, recorded_texts
from specdec.measure.alphas import Accepted
from specdec.plan import Plan
from specdec.predict import predicted_speedup, schedule_replay, timed_costs
from specdec.predict.costs import Costs
from specdec.predict.predicted_speedup import PredictedSpeedup
from specdec.predict.schedule_replay import SAMPLES, Replayed
from specdec.schedules import Fixed
from specdec.texts.measured_run import Run, Variant
from specdec.types import PyTree
from specdec.verifiers import Block, SpeculativeSampling

GAMMAS = "1-10"  # the default of --gammas; lengths that outputs cannot hold are left out


class DraftLengths(NamedTuple):
    """Variants whose speed-up is predicted at each draft length."""

    variants: Sequence[Variant]
    # each variant's acceptance rate; None if another drafter's was recorded
    alphas: Sequence[float | None]
    texts: Sequence[Accepted]  # the recorded texts
    gammas: Sequence[int]  # draft lengths, ascending
    costs: Costs | None  # None to measure the costs on this machine
    rows: int  # the batch size

    @classmethod
    def of(
        cls,
        variants: Iterable[Variant],
        path: str,
        gammas: Sequence[int],
        *,
        asked: bool,
        costs: Costs | None,
        rows: int,
    ) -> DraftLengths:
        """Reads recorded texts from `path`, and checks that the variants can be replayed on them.

        If not `asked`, draft lengths that outputs cannot hold are dropped."""
        texts = recorded_texts.read(path)
        if len(texts) < rows:
            raise UsageError(
                f"--batch_size is {rows} and --passes {path} has {len(texts)} texts; give a "
                "smaller batch size"
            )
        tokens = sum(text.tokens for text in texts)
        checked, alphas = [], []
        for variant in variants:
            plan = variant.run.plan
            drafters = dict(opinions.recorded(plan.drafter))
            same_drafter = recorded_texts.check(path, variant, texts, drafters)
            if gammas[-1 if asked else 0] > schedule_replay.longest(plan):
                raise UsageError(
                    f"--gammas has {gammas[-1]} but {schedule_replay.bound(plan)}; give shorter "
                    "drafts"
                )
            _refuse(plan)
            with one_line(f"--passes {path}: "):
                schedule_replay.check(plan, texts)
            accepted = (text.accepted["model"][0] for text in texts)
            alphas.append(sum(accepted) / tokens if same_drafter else None)
            checked.append(variant)
        room = min(schedule_replay.longest(variant.run.plan) for variant in checked)
        return cls(checked, alphas, texts, [x for x in gammas if x <= room], costs, rows)

    def predictions(self) -> Iterator[tuple[Variant, PredictedSpeedup]]:
        """Yields (variant, prediction) for each draft length and schedule of each variant."""
        for variant, alpha in zip(self.variants, self.alphas, strict=True):
            costs = self._costs(variant.run)
            for plan in _plans(variant.run.plan, self.gammas):
                calls = replayed(variant.run, plan, self.texts)
                figures = predicted_speedup.predict(
                    plan, calls, costs, len(self.texts), alpha, self.rows
                )
                yield variant, dataclasses.replace(figures, variant=variant.name)

    def _costs(self, run: Run) -> dict[int | None, Costs]:
        """Returns draft length -> costs, up to the longest one; None -> costs of the schedule."""
        lengths = range(1, self.gammas[-1] + 1)
        if self.costs:
            return dict.fromkeys((None, *lengths), self.costs)
        plans = {plan.gamma: plan for plan in _plans(run.plan, lengths)}
        return timed_costs.of_run(run, self.texts, plans, self.rows)


def _plans(plan: Plan, gammas: Sequence[int]) -> list[Plan]:
    """Returns a plan for each draft length, and `plan` if its lengths vary or it drafts nothing."""
    if not plan.drafts:
        return [plan]
    fixed = [dataclasses.replace(plan, schedule=Fixed(gamma)) for gamma in gammas]
    return [*fixed, plan] if plan.lengths_vary else fixed


def _refuse(plan: Plan) -> None:
    """Raises UsageError for a plan whose accepted tokens cannot be computed from recorded texts."""
    recorded_texts.refuse_adapting(plan.drafter)
    if plan.drafter.paths:
        raise UsageError(
            f"DRAFTER drafts {plan.drafter.paths} paths, and recorded texts have one; compare "
            "paths with specdec bench"
        )
    if not plan.verifier.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give an exact one")
    draws = any(schedule_replay.kind_of(x) == "ratio" for _, x in opinions.recorded(plan.drafter))
    known = isinstance(plan.verifier, Block | SpeculativeSampling)
    if draws and not plan.sampling.greedy and not known:
        raise UsageError(
            f"VERIFIER is {plan.verifier}, and sampled texts can be replayed only with block "
            "verification or speculative sampling; give verifiers/block.gin"
        )


def replayed(run: Run, plan: Plan, texts: Sequence[Accepted], samples: int = SAMPLES) -> Replayed:
    """Returns the target calls of the recorded texts with this plan, by a replay without models."""
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
    """Returns the target calls with the plan's schedule, by decoding the texts' inputs again."""
    engine = run.engine.variant(schedule=plan.schedule)
    by_index: dict[int, Replayed] = {}
    wanted = {text.index for text in texts}
    for batch in run.batches(everywhere=True):
        output, _ = engine.decode(batch, seed=run.data.seed)
        trace = output.trace
        counts: PyTree = output.length, trace.calls, trace.drafted, trace.accepted
        of_rows = Replayed(*counts, source=None)
        for row, index in enumerate(batch.index):
            if index in wanted:
                by_index[int(index)] = jax.tree.map(lambda x, row=row: x[row], of_rows)
        if len(by_index) == len(wanted):
            break
    return jax.tree.map(lambda *rows: np.stack(rows), *(by_index[text.index] for text in texts))
