"""Computes the figures of a benchmark from its records. Letters are those of `common.theory`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from specdec.common import theory
from specdec.common.statistics import Estimate, ratio
from specdec.measure import estimator
from specdec.measure.estimator import MeasuredParts, Spread, total
from specdec.measure.file import Generation, Record
from specdec.types import Part, TargetCall

# A function that maps target calls to the model calls of an average iteration: `Plan.parts`.
Parts: TypeAlias = Callable[[Iterable[TargetCall]], Sequence[Part]]


@dataclasses.dataclass(frozen=True)
class Quantiles:
    """Quantiles over texts of each text's median seconds."""

    p10: float
    p50: float
    p90: float
    p99: float


@dataclasses.dataclass(frozen=True)
class Latency:
    """The latency of a mode, in seconds."""

    # TTFT, the time of prefill and of the first iteration, computed from the parts. With
    # speculation, that iteration yields tau tokens on average.
    first_token: float
    # TPOT, the time of each token after the first iteration. None if no text has such tokens, or if
    # prefill took longer than whole texts, which happens on a busy machine.
    per_token: float | None


@dataclasses.dataclass(frozen=True)
class Speedup:
    """The time of the target alone divided by that of speculation."""

    over_texts: Estimate  # the ratio of the sums over texts, the speed-up that is reported first
    # the ratio of seconds per output token, or per step of a beam search
    per_token: float
    median_text: float  # the median over texts of each text's ratio


@dataclasses.dataclass(frozen=True)
class GreedyFigures:
    """Figures of greedy speculation, timed in addition to a beam search."""

    speedup: Speedup  # the time of the beam search without drafts / that of greedy speculation
    tau: float  # tokens per target call of greedy speculation


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Seconds of the target alone, compared with a bare scan of target calls and argmaxes."""

    target_prefill: float  # the time of the target's prefill
    target_step: float  # the time of a step in the scan
    over_scan: float  # (generation - prefill) / tokens / target_step
    over_scan_with_prefill: float  # generation / tokens / target_step
    # bytes/s at which this device read 0.5 GiB during the benchmark, the best value
    bandwidth: float
    # the seconds to read the parameters of a step at this bandwidth; None if their bytes are not
    # known. A model that fits in a cache can be faster.
    floor: float | None


@dataclasses.dataclass(frozen=True)
class BenchmarkPrediction:
    """The speed-up predicted from the timed parts and the measured acceptance."""

    gamma: int | None  # tokens of a draft; None if drafts vary in length
    prefill: float  # seconds of the prefill of all models
    # c, the seconds of a draft's models / its tokens / target_step; 0 without models
    cost_ratio: float
    verify_cost: float  # v, the seconds of the target's call / target_step
    # the alpha at which `theory.expected_tokens` is tau; None without gamma
    alpha_from_tau: float | None
    long_generation: float | None  # theory.speedup(alpha, gamma, c, v); None without gamma
    # the predicted speed-up for the timed texts. A generation of n target calls takes prefill + n
    # target_step with the target alone, and prefill + n (draft + verify) with speculation.
    these_texts: float
    measured_over_predicted: float  # the measured speed-up / these_texts
    draft: float  # seconds of drafting in one iteration
    verify: float  # seconds of the target's call in one iteration
    rest: float  # measured seconds of an iteration - draft - verify
    # the model calls of an iteration; a mean over these texts if lengths vary
    parts: Sequence[Part] = ()
    # the time of draft calls that alternate with target calls / the time of the same calls timed
    # alone. `draft` includes this factor; 1 if it was not timed.
    by_turns: float = 1.0


@dataclasses.dataclass(frozen=True)
class PredictedByOthers:
    """The speed-up of the timed texts, predicted from the acceptance on texts of another split."""

    split: str  # the other split
    texts: int  # the number of texts of the other split
    tau: float  # tokens per target call on the other split
    alpha: float | None  # the acceptance rate on the other split
    # tau T / I, the predicted speed-up without prefill. T is the target's step, and I is draft +
    # verify of an iteration on the other split: (gamma c + v) T if draft lengths do not vary.
    decoding: float
    # (E + m T) / (E' + m / tau I), sums over the timed texts. E and E' are the prefill of the
    # target and of all models, and m is the number of tokens of the target alone.
    whole: float
    # the measured speed-up per token without prefill; `Speedup.per_token` includes prefill
    measured_decoding: float
    measured_over_decoding: float  # measured_decoding / decoding
    measured_over_whole: float  # the measured speed-up per token / whole


@dataclasses.dataclass(frozen=True)
class BenchmarkSummary:
    """All figures of a benchmark."""

    texts: int
    repeats: int
    seconds: Mapping[str, Quantiles]  # by mode
    latency: Mapping[str, Latency]  # by mode; of speculation only with a prediction
    speedup: Speedup
    # how many of the texts * repeats generations have the same tokens in both modes; None if
    # outputs are sampled and need not be equal
    identical: int | None
    tau: float  # tokens per target call
    alpha: float | None  # accepted / tested draft tokens; None if no token was drafted
    baseline: Baseline
    prediction: BenchmarkPrediction | None  # None if the calls of an iteration are not known
    # None if `prediction` is None, or if no other split was decoded
    forecast: PredictedByOthers | None = None
    # whether the output has the target's distribution. If not, only times are meaningful.
    exact: bool = True
    # by position in the draft, the share of tokens accepted if all before were, see
    # `theory.acceptance_by_position`; None where no token was tested
    conditional: Sequence[float | None] = ()
    joint: Sequence[float | None] = ()  # the share of drafts accepted up to a position
    depth: float | None = None  # mean layers of a target call; None if calls run all layers
    broken_drafts: int = 0  # drafts cut where probabilities were not a distribution
    spread: Spread | None = None  # how much times vary; None if nothing was timed twice
    # the number of beams, 0 without beam search. In a beam search, the target alone also searches,
    # and figures per token are per step of the search.
    beams: int = 0
    greedy: GreedyFigures | None = None  # None without beam search

    def record(self) -> dict[str, Any]:
        """Returns all fields as values that JSON can hold."""
        fields = dataclasses.asdict(self)
        if self.greedy is None:
            del fields["beams"], fields["greedy"]
        for figures in filter(None, (fields, fields.get("greedy"))):
            ratio, low, high = figures["speedup"].pop("over_texts")
            figures["speedup"] = {"ratio": ratio, "low": low, "high": high, **figures["speedup"]}
        return fields | {"spread": self.spread and self.spread._asdict()}


def summarize(
    records: Iterable[Record],
    *,
    parts: Parts | None,
    gamma: int | None,
    same_output: bool,
    exact: bool = True,
    beams: int = 0,
    step_bytes: int | None = None,
) -> BenchmarkSummary:
    """Returns the figures of a benchmark's records.

    `parts` is `Plan.parts`, None for no prediction; `same_output` asks for equal outputs in both
    modes; `step_bytes` are the bytes of parameters that a target step reads."""
    measured = MeasuredParts.of(records)
    alone, speculative, costs = measured.alone, measured.speculative, measured.costs
    speedup, (tau, alpha) = _speedup(alone, speculative), _acceptance(speculative)
    conditional, joint = theory.acceptance_by_position(*_calls(speculative))
    depths = estimator.depths(speculative)
    latency = {"alone": _latency(alone, costs.prefill_alone + costs.step)}
    prediction = by_others = None
    if parts is not None:
        prediction = _prediction(measured, parts, gamma, speedup.over_texts.value, tau, alpha)
        iteration = prediction.draft + prediction.verify + prediction.rest
        latency["speculative"] = _latency(speculative, costs.prefill + iteration)
        by_others = _predicted_by_others(measured, parts, speedup) if measured.elsewhere else None
    modes, greedy = {"alone": alone, "speculative": speculative, "greedy": measured.greedy}, None
    if measured.greedy:
        greedy = GreedyFigures(_speedup(alone, measured.greedy), _acceptance(measured.greedy)[0])
    return BenchmarkSummary(
        texts=len({generation.text for generation in alone}),
        repeats=len({generation.repeat for generation in alone}),
        seconds={mode: _quantiles(texts) for mode, texts in modes.items() if texts},
        latency={} if beams else latency,  # no text is known before the search is over
        speedup=speedup,
        identical=_identical(measured) if same_output else None,
        tau=tau,
        alpha=alpha,
        baseline=_baseline(measured, step_bytes),
        prediction=prediction,
        forecast=by_others,
        exact=exact,
        conditional=_known(conditional),
        joint=_known(joint),
        depth=statistics.fmean(depths) if depths else None,
        broken_drafts=sum(generation.broken_drafts for generation in speculative),
        spread=measured.spread,
        beams=beams,
        greedy=greedy,
    )


def alpha_from_tau(tau: float, gamma: int) -> float:
    """Returns the alpha at which `theory.expected_tokens(alpha, gamma)` is tau, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        too_low = theory.expected_tokens(middle, gamma) < tau
        low, high = (middle, high) if too_low else (low, middle)
    return (low + high) / 2


def _acceptance(generations: Sequence[Generation]) -> tuple[float, float | None]:
    """Returns tau, and alpha; alpha is None if no token was drafted."""
    tau = theory.block_efficiency(
        *([value(x) for x in generations] for value in (estimator.steps, estimator.calls))
    )
    alpha = theory.empirical_alpha(*_calls(generations))
    return tau, None if math.isnan(alpha) else alpha


def _parts(parts: Parts, generations: Sequence[Generation]) -> tuple[Part, ...]:
    calls = (TargetCall.each(x.drafted, x.sources, x.depths) for x in generations)
    return tuple(parts(itertools.chain.from_iterable(calls)))


def _known(shares: np.ndarray) -> list[float | None]:
    """Returns the shares, rounded, with None instead of nan, which JSON does not have."""
    return [None if math.isnan(x) else round(x, 4) for x in shares.tolist()]


def _calls(generations: Sequence[Generation]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of accepted and of drafted tokens, [calls] each, of all target calls."""
    return (
        np.concatenate([generation.accepted for generation in generations]),
        np.concatenate([generation.drafted for generation in generations]),
    )


def _speedup(alone: Sequence[Generation], faster: Sequence[Generation]) -> Speedup:
    before, after = (estimator.medians(mode, estimator.seconds) for mode in (alone, faster))
    pairs = np.array([[seconds[text] for text in before] for seconds in (before, after)])
    over_texts = ratio(*pairs)
    longer = total(faster, estimator.steps) / total(alone, estimator.steps)
    return Speedup(
        over_texts=over_texts,
        per_token=float(over_texts.value * longer),
        median_text=float(np.median(pairs[0] / pairs[1])),
    )


def _baseline(measured: MeasuredParts, step_bytes: int | None) -> Baseline:
    alone, costs = measured.alone, measured.costs
    scans = total(alone, estimator.steps) * costs.step
    return Baseline(
        target_prefill=costs.prefill_alone,
        target_step=costs.step,
        over_scan=_without(costs.prefill_alone, alone) / scans,
        over_scan_with_prefill=total(alone, estimator.seconds) / scans,
        bandwidth=measured.bandwidth,
        floor=None if step_bytes is None else step_bytes / measured.bandwidth,
    )


def _prediction(
    measured: MeasuredParts,
    parts: Parts,
    gamma: int | None,
    speedup: float,
    tau: float,
    alpha: float | None,
) -> BenchmarkPrediction:
    alone, speculative, costs = measured.alone, measured.speculative, measured.costs
    calls, drafted = _parts(parts, speculative), estimator.drafted(speculative)
    iteration = costs.iteration(calls, statistics.fmean(drafted) if gamma is None else gamma)
    predicted = total(alone, lambda text: costs.prefill_alone + text.calls * costs.step) / total(
        speculative, lambda text: costs.prefill + text.calls * iteration.seconds
    )
    seconds = _without(costs.prefill, speculative) / total(speculative, estimator.calls)
    return BenchmarkPrediction(
        gamma=gamma,
        prefill=costs.prefill,
        cost_ratio=iteration.cost_ratio,
        verify_cost=iteration.verify_cost,
        alpha_from_tau=None if gamma is None else alpha_from_tau(tau, gamma),
        long_generation=None if gamma is None or alpha is None else iteration.speedup(alpha),
        these_texts=predicted,
        measured_over_predicted=speedup / predicted,
        draft=iteration.draft,
        verify=iteration.verify,
        rest=seconds - iteration.seconds,
        parts=calls,
        by_turns=measured.by_turns,
    )


def _predicted_by_others(
    measured: MeasuredParts, parts: Parts, speedup: Speedup
) -> PredictedByOthers:
    """Predicts the speed-up from the parts, and from the drafts on the other split."""
    alone, elsewhere, costs = measured.alone, measured.elsewhere, measured.costs
    tau, alpha = _acceptance(elsewhere)
    per_token = costs.iteration(_parts(parts, elsewhere)).seconds / tau
    whole = total(alone, lambda text: costs.prefill_alone + text.steps * costs.step) / total(
        alone, lambda text: costs.prefill + text.steps * per_token
    )
    decoding = _per_token(alone, costs.prefill_alone)
    decoding /= _per_token(measured.speculative, costs.prefill)
    return PredictedByOthers(
        split=elsewhere[0].split or "",
        texts=len(elsewhere),
        tau=tau,
        alpha=alpha,
        decoding=costs.step / per_token,
        whole=whole,
        measured_decoding=decoding,
        measured_over_decoding=decoding / (costs.step / per_token),
        measured_over_whole=speedup.per_token / whole,
    )


def _without(prefill: float, generations: Sequence[Generation]) -> float:
    """Returns the sum over texts of median seconds, minus `prefill` seconds for each text."""
    return total(generations, lambda text: estimator.seconds(text) - prefill)


def _per_token(generations: Sequence[Generation], prefill: float) -> float:
    return _without(prefill, generations) / total(generations, estimator.steps)


def _latency(generations: Sequence[Generation], first_token: float) -> Latency:
    """Returns the latency, with tau tokens in the first iteration, which takes `first_token`."""
    calls, tokens = (total(generations, x) for x in (estimator.calls, estimator.steps))
    seconds = _without(first_token, generations)
    later = tokens - tokens / calls * len({generation.text for generation in generations})
    return Latency(first_token, seconds / later if later and seconds > 0 else None)


def _identical(measured: MeasuredParts) -> int:
    plain, ours = (
        {(text.text, text.repeat): (text.tokens, text.beams) for text in texts}
        for texts in (measured.alone, measured.speculative)
    )
    return sum(plain[key] == output for key, output in ours.items())


def _quantiles(generations: Sequence[Generation]) -> Quantiles:
    seconds = list(estimator.medians(generations, estimator.seconds).values())
    return Quantiles(*(float(value) for value in np.quantile(seconds, [0.1, 0.5, 0.9, 0.99])))
