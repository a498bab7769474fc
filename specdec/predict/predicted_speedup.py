"""The speed-up that follows from a replay and from the costs of the parts."""

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
    """The figures of one draft length, or of a schedule; None if a part's costs are not known.

    Attributes:
      gamma: Tokens of a draft; absent where they vary, 0 where nothing is drafted.
      texts: Texts that were replayed.
      tokens: Output tokens of all of them.
      calls: Target calls of all of them, a mean over samples where the drafter draws.
      tokens_per_call: Tokens over calls.
      speedup: Over the target alone, with prefill; absent where the costs of a part are not known.
      formula_tokens_per_call: By alpha, as if acceptances were independent and no text ended;
        absent without alpha or where lengths vary.
      formula_speedup: The speed-up by alpha and by c and v of the costs, without prefill; absent
        where either is not known.
      oracle_speedup: If every draft stopped just before its first refusal, gamma tokens long at
        most; absent where the costs of a part are not known.
      hazard: By depth in the draft, the share of draft tokens that are refused, of those whose
        drafts were kept so far.
      layers: Layers of a target call, the mean over calls; absent where calls go through all.
      variant: The variant as it was given, empty without one.
      drafter: The drafter's class.
      schedule: What chooses draft lengths.
      sampling: How tokens are drawn.
      alpha: Teacher-forced, of the passes; absent where those are of another drafter.
      costs: Where the seconds of the parts are from.
      tokens_per_call_interval: The ends of its 95 % interval by a bootstrap over texts.
      speedup_interval: The ends of its 95 % interval by a bootstrap over texts; absent where
        `speedup` is.
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
        """Returns a line of JSON, without unknown values."""
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
    """Returns the figures of a plan."""
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
    """Returns [texts], the mean seconds over samples, with prefill; None if a cost is not known."""
    decoding = _seconds(
        replayed, replayed.drafted, lambda call: costs.iteration(plan.parts([call])).seconds
    )
    return None if decoding is None else costs.prefill + _by_text(decoding, texts)


def oracle_seconds(
    plan: Plan, replayed: Replayed, costs: Mapping[int | None, Costs], texts: int
) -> np.ndarray | None:
    """Returns [texts], as `seconds`, if every draft stopped just before its first rejection."""
    decoding = _seconds(replayed, replayed.accepted, functools.partial(_oracle, plan, costs))
    return None if decoding is None else costs[plan.gamma].prefill + _by_text(decoding, texts)


def best(predictions: Sequence[PredictedSpeedup]) -> PredictedSpeedup | None:
    """Returns the figures with the greatest speed-up; None if none is known."""
    known = [(figures.speedup.value, figures) for figures in predictions if figures.speedup]
    return max(known, key=operator.itemgetter(0))[1] if known else None


def lines(predictions: Sequence[PredictedSpeedup]) -> Iterator[str]:
    """Yields the table as lines of text."""
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
        yield "refused  " + " ".join(f"{x:.1%}" for x in hazard) + "  by depth in the draft"
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
    """Returns [R, N] bool, which places of the arrays have a call."""
    return np.arange(replayed.drafted.shape[1])[None] < replayed.calls[:, None]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _by_text(values: np.ndarray, texts: int) -> np.ndarray:
    """Returns [texts], the mean over samples of [samples x texts]."""
    return values.reshape(-1, texts).mean(axis=0)


def _seconds(
    replayed: Replayed, drafted: np.ndarray, of_call: Callable[[TargetCall], float]
) -> np.ndarray | None:
    """Returns [R], the seconds of all calls of a text; None if those of a call are not known."""
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
    """Returns the seconds of a call if the schedule had known how many tokens would be accepted."""
    length = call.drafted
    if not length:
        return next(iter(costs.values())).step
    if length not in costs:
        return math.nan
    fixed = dataclasses.replace(plan, schedule=Fixed(length))
    return costs[length].iteration(fixed.parts([call._replace(drafted=None)])).seconds


def _formula(plan: Plan, costs: Costs, alpha: float | None) -> tuple[float, float | None] | None:
    """Returns the tokens per call and the speed-up of independent acceptances."""
    gamma = plan.gamma
    if gamma is None or alpha is None:
        return None
    iteration = costs.iteration(plan.parts(), gamma)
    known = not math.isnan(iteration.seconds)
    return theory.expected_tokens(alpha, gamma), iteration.speedup(alpha) if known else None


def _hazard(replayed: Replayed) -> Iterator[float]:
    """Yields the share of rejections at each position, as far as drafts came."""
    drafted, accepted = replayed.drafted, replayed.accepted
    for depth in range(1, int(drafted.max(initial=0)) + 1):
        tested = (drafted >= depth) & (accepted >= depth - 1)
        if not tested.any():
            return
        yield float(np.mean(accepted[tested] < depth))
