"""Computes speed-ups from replayed target calls and the costs of model calls."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from specdec.common import theory
from specdec.common.schemas import Amount, Count, OneOrMore, Share
from specdec.common.statistics import Estimate, ratio
from specdec.common.tables import columns
from specdec.plan import Plan
from specdec.predict.costs import Costs
from specdec.predict.schedule_replay import Replayed, grouped
from specdec.schedules import Fixed
from specdec.types import TargetCall


@dataclasses.dataclass(frozen=True)
class PredictedSpeedup:
    """The predicted speed-up of one draft length, or of a schedule that varies the length.

    Attributes:
      gamma: Tokens per draft; 0 without a drafter, absent if drafts vary in length.
      texts: The number of replayed texts.
      tokens: The output tokens of all texts.
      calls: The target calls for all texts; a mean over samples if the drafter samples.
      tokens_per_call: `tokens` / `calls`.
      speedup: Over the target alone, with prefill; absent if the cost of a model call is not known.
      formula_tokens_per_call: Tokens per call computed from alpha, as if acceptances were
        independent and no text ended; absent without alpha or if drafts vary in length.
      formula_speedup: The speed-up computed from alpha, c and v, without prefill; absent if one of
        them is not known.
      oracle_speedup: The speed-up if every draft stopped just before its first rejected token, at
        most gamma tokens long; absent if the cost of a model call is not known.
      hazard: By position in the draft, the share of tested draft tokens that are rejected.
      layers: The target's layers per call, a mean; absent if all calls run all layers.
      variant: The name of the variant; empty for the run's drafter.
      drafter: The drafter's class.
      schedule: The schedule of draft lengths.
      sampling: The sampling rule.
      alpha: The acceptance rate on the recorded texts; absent if they have another drafter.
      costs: The source of the costs, in words.
      tokens_per_call_interval: The ends of the 95 % interval by a bootstrap over texts.
      speedup_interval: The ends of the 95 % interval by a bootstrap over texts; absent if `speedup`
        is.
    """

    gamma: Annotated[int | None, Count]
    texts: OneOrMore
    tokens: Count
    calls: Amount
    tokens_per_call: Annotated[Estimate, Amount]
    # The sums over texts of prefill + tokens x step, divided by prefill + calls x parts.
    speedup: Annotated[Estimate | None, Amount]
    formula_tokens_per_call: Annotated[float | None, Amount]
    formula_speedup: Annotated[float | None, Amount]
    oracle_speedup: Annotated[float | None, Amount]
    hazard: Sequence[Share]
    layers: Annotated[float | None, Annotated[float, Meta(ge=1)]] = None
    variant: str = ""
    drafter: str = ""
    schedule: str = ""
    sampling: str = ""
    alpha: Annotated[float | None, Share] = None
    costs: str = ""

    LINE: ClassVar = (
        *("variant", "drafter", "schedule", "sampling", "alpha", "costs", "gamma", "texts"),
        *("tokens", "calls", "tokens_per_call", "tokens_per_call_interval", "speedup"),
        *("speedup_interval", "formula_tokens_per_call", "formula_speedup", "oracle_speedup"),
        *("hazard", "layers"),
    )

    @property
    def tokens_per_call_interval(self) -> Annotated[list[float], list[Amount]]:
        return [self.tokens_per_call.low, self.tokens_per_call.high]

    @property
    def speedup_interval(
        self,
    ) -> Annotated[list[float] | None, list[Amount]]:
        return self.speedup and [self.speedup.low, self.speedup.high]

    def record(self) -> dict[str, object]:
        """Returns the fields of a line of JSON, without unknown values."""
        fields = {name: getattr(self, name) for name in self.LINE}
        plain = {k: v.value if isinstance(v, Estimate) else v for k, v in fields.items()}
        return {name: value for name, value in plain.items() if value is not None}


def predict(
    plan: Plan,
    replayed: Replayed,
    costs: Mapping[int | None, Costs],
    texts: int,
    alpha: float | None,
    rows: int = 1,
) -> PredictedSpeedup:
    """Returns the predicted speed-up of a plan from its replayed target calls for `texts` texts.

    `costs` maps a draft length to costs, `plan.gamma` to the plan's; `rows` is the batch size."""
    of_plan, batches = costs[plan.gamma], texts // rows
    tokens, calls = (_by_text(x, texts) for x in (replayed.tokens, replayed.calls))
    batched = grouped(replayed, texts, rows)
    alone = of_plan.prefill_alone + _by_text(batched.tokens, batches) * of_plan.step
    oracle = oracle_seconds(plan, batched, costs, batches) if plan.drafts else None
    drafted = seconds(plan, batched, of_plan, batches)
    speedups = [None if x is None else ratio(alone, x) for x in (drafted, oracle)]
    formula = _formula(plan, of_plan, alpha)
    return PredictedSpeedup(
        gamma=plan.gamma if plan.drafts else 0,
        texts=texts,
        tokens=round(tokens.sum()),
        calls=float(calls.sum()),
        tokens_per_call=ratio(tokens, calls),
        speedup=speedups[0],
        formula_tokens_per_call=formula and formula[0],
        formula_speedup=formula and formula[1],
        oracle_speedup=speedups[1] and speedups[1].value,
        hazard=list(_hazard(replayed)),
        layers=_layers(replayed),
        drafter=type(plan.drafter).__name__,
        schedule=repr(plan.schedule),
        sampling=repr(plan.sampling),
        alpha=alpha,
        costs=of_plan.source,
    )


def seconds(plan: Plan, replayed: Replayed, costs: Costs, texts: int) -> np.ndarray | None:
    """Returns [texts], the predicted seconds of each text, a mean over samples, with prefill.

    Returns None if the cost of a call is not known."""
    decoding = _seconds(
        replayed, replayed.drafted, lambda call: costs.iteration(plan.parts([call])).seconds
    )
    return None if decoding is None else costs.prefill + _by_text(decoding, texts)


def oracle_seconds(
    plan: Plan, replayed: Replayed, costs: Mapping[int | None, Costs], texts: int
) -> np.ndarray | None:
    """Returns `seconds` as if each draft stopped just before its first rejected token."""
    decoding = _seconds(replayed, replayed.accepted, functools.partial(_oracle, plan, costs))
    return None if decoding is None else costs[plan.gamma].prefill + _by_text(decoding, texts)


def best(predictions: Sequence[PredictedSpeedup]) -> PredictedSpeedup | None:
    """Returns the prediction with the greatest speed-up; None if no speed-up is known."""
    known = [(figures.speedup.value, figures) for figures in predictions if figures.speedup]
    return max(known, key=operator.itemgetter(0))[1] if known else None


def lines(predictions: Sequence[PredictedSpeedup]) -> Iterator[str]:
    """Yields the printed table, a row per prediction, and the draft length that is fastest."""
    names = ("speed-up", "95 % interval", "tokens/call", "formula's", "its tokens", "oracle's")
    rows = [
        (
            "own" if figures.gamma is None else figures.gamma,
            _cell(figures.speedup and figures.speedup.value),
            figures.speedup.interval() if figures.speedup else "",
            _cell(figures.tokens_per_call.value),
            _cell(figures.formula_speedup),
            _cell(figures.formula_tokens_per_call),
            _cell(figures.oracle_speedup),
        )
        for figures in predictions
    ]
    yield from columns([("gamma", *names), *rows], ">5", ">15")
    hazard = max((figures.hazard for figures in predictions), key=len)
    if hazard:
        yield "refused  " + " ".join(f"{x:.1%}" for x in hazard) + "  by position in the draft"
    layers = [f"{figures.layers:.2f}" for figures in predictions if figures.layers is not None]
    if layers:
        yield "layers   " + " ".join(layers) + "  of a target call, mean, by row"
    if fastest := best(predictions):
        assert fastest.speedup
        gamma, speedup = fastest.gamma, fastest.speedup.value
        name = "the run's own schedule" if gamma is None else f"gamma {gamma}"
        if speedup > 1:
            yield f"best     {name}, {speedup:.2f} times as fast as the target alone"
        else:
            yield "best     the target alone, no draft pays"


def _layers(replayed: Replayed) -> float | None:
    if replayed.depth is None:
        return None
    return float(replayed.depth[_within(replayed)].mean())


def _within(replayed: Replayed) -> np.ndarray:
    """Returns [R, N] bool, which entries of the arrays [R, N] are calls and not padding."""
    return np.arange(replayed.drafted.shape[1])[None] < replayed.calls[:, None]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _by_text(values: np.ndarray, texts: int) -> np.ndarray:
    """Returns [texts], the mean over samples of values [samples * texts]."""
    return values.reshape(-1, texts).mean(axis=0)


def _seconds(
    replayed: Replayed, drafted: np.ndarray, of_call: Callable[[TargetCall], float]
) -> np.ndarray | None:
    """Returns [R], the seconds of all calls of each text; None if the cost of one is not known."""
    within, optional = _within(replayed), (replayed.source, replayed.depth)
    counts = [drafted, *(np.zeros_like(drafted) if x is None else x for x in optional)]
    kinds, which = np.unique(np.stack(counts)[:, within], axis=1, return_inverse=True)
    known = [True, *(x is not None for x in optional)]
    of_kinds = np.array(
        [
            of_call(TargetCall(*(int(x) if y else None for x, y in zip(kind, known, strict=True))))
            for kind in kinds.T
        ]
    )
    if np.isnan(of_kinds).any():
        return None
    seconds = np.zeros(drafted.shape)
    seconds[within] = of_kinds[which.ravel()]
    return seconds.sum(axis=1)


def _oracle(plan: Plan, costs: Mapping[int | None, Costs], call: TargetCall) -> float:
    """Returns the seconds of an iteration that drafts only the tokens that will be accepted."""
    length = call.drafted
    if not length:
        return next(iter(costs.values())).step
    if length not in costs:
        return math.nan
    fixed = dataclasses.replace(plan, schedule=Fixed(length))
    return costs[length].iteration(fixed.parts([call._replace(drafted=None)])).seconds


def _formula(plan: Plan, costs: Costs, alpha: float | None) -> tuple[float, float | None] | None:
    """Returns tokens per call and speed-up for independent acceptances; None if not known."""
    gamma = plan.gamma
    if gamma is None or alpha is None:
        return None
    iteration = costs.iteration(plan.parts(), gamma)
    known = not math.isnan(iteration.seconds)
    return theory.expected_tokens(alpha, gamma), iteration.speedup(alpha) if known else None


def _hazard(replayed: Replayed) -> Iterator[float]:
    """Yields the share of tested draft tokens that are rejected, by position in the draft."""
    drafted, accepted = replayed.drafted, replayed.accepted
    for depth in range(1, int(drafted.max(initial=0)) + 1):
        tested = (drafted >= depth) & (accepted >= depth - 1)
        if not tested.any():
            return
        yield float(np.mean(accepted[tested] < depth))
