"""From records to figures; pure functions.

Letters as in `theory`. Every figure of both modes is made with one estimator, the sum over texts of
the median over repeats: of measured seconds, of seconds predicted from the parts, of calls.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from specdec import theory
from specdec.benchmark.measure import Elsewhere, Generation, Timing
from specdec.benchmark.programs import READ_BYTES

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Quantiles:
    """Over texts, of each text's median seconds."""

    p10: float
    p50: float
    p90: float
    p99: float


@dataclasses.dataclass(frozen=True)
class Latency:
    """Seconds.

    first_token: TTFT, prefill and the first iteration, by the parts (of speculation that iteration
      brings tau tokens on average). per_token: TPOT, of each token that is not of it.
    """

    first_token: float
    per_token: float


@dataclasses.dataclass(frozen=True)
class Speedup:
    """How many times as long the target alone takes.

    ratio: of the sums over texts, the headline. low, high: its 95 % bootstrap interval, texts drawn
      with replacement, both modes of a text together.
    per_token: ratio of seconds per emitted token; other than `ratio` if the texts are.
    median_text: median of the texts' own ratios.
    """

    ratio: float
    low: float
    high: float
    per_token: float
    median_text: float


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The target alone beside a bare scan, target and argmax; seconds.

    over_scan: (generation - prefill) / tokens / target_step. over_scan_with_prefill: generation /
      tokens / target_step.
    bandwidth: bytes/s at which this device read 0.5 GiB in the same minutes, at its best.
    floor: what a step must read, the parameters that `decode` uses, over that; None if not known.
      A model that fits in a cache is faster than its floor.
    """

    target_prefill: float
    target_step: float
    over_scan: float
    over_scan_with_prefill: float
    bandwidth: float
    floor: float | None


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the parts and the acceptance say the speed-up should be.

    prefill: seconds, both models.
    cost_ratio: c, the seconds of all steps of a draft / gamma / target_step. The first step of a
      draft is two tokens wide.
    verify_cost: v, target_verify / target_step.
    alpha_from_tau: the alpha at which `theory.expected_tokens` is tau.
    long_generation: theory.speedup(alpha, gamma, c, v).
    these_texts: Speedup.ratio, had every generation of n target calls taken its prefill + n
      target_step, alone, or its prefill + n (gamma c + v) target_step.
    measured_over_predicted: Speedup.ratio / these_texts.
    draft, verify, rest: seconds of one iteration; rest is what is measured and in neither part.
    """

    gamma: int
    prefill: float
    cost_ratio: float
    verify_cost: float
    alpha_from_tau: float
    long_generation: float | None
    these_texts: float
    measured_over_predicted: float
    draft: float
    verify: float
    rest: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What is to be expected of these texts by the parts and the acceptance of others.

    split, texts: what those are. tau, alpha: theirs.
    decoding: tau / (gamma c + v), the speed-up without prefill.
    whole: (E + m T) / (E + E' + m / tau (gamma c + v) T), sums over texts, with E and E' the
      prefill of target and draft, T the target's step, and m the tokens of the target alone.
    measured_decoding: the speed-up per token without prefill; that with it is `Speedup.per_token`.
    """

    split: str
    texts: int
    tau: float
    alpha: float | None
    decoding: float
    whole: float
    measured_decoding: float
    measured_over_decoding: float
    measured_over_whole: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """All figures of a benchmark.

    identical: generations with the same tokens in both modes, of texts * repeats; None if they need
      not be the same.
    alpha: accepted / tested drafts; None if nothing was drafted.
    prediction: None without a gamma.
    forecast: None also without texts of another split.
    """

    texts: int
    repeats: int
    seconds: Mapping[str, Quantiles]  # by mode
    latency: Mapping[str, Latency]  # by mode; of speculation only with a gamma
    speedup: Speedup
    identical: int | None
    tau: float  # tokens per target call
    alpha: float | None
    baseline: Baseline
    prediction: Prediction | None
    forecast: Forecast | None = None


def summarize(
    records: Iterable[Generation | Timing | Elsewhere],
    *,
    gamma: int | None,
    same_output: bool,
    step_bytes: int | None = None,
) -> Summary:
    """The figures of what `measure` gave for a `Subject` with this gamma and same_output, and what
    `decode_elsewhere` gave for texts of one other split.

    step_bytes: of the parameters that one call of the target's `decode` reads.

    Raises:
      ValueError: nothing was generated.
    """
    records = list(records)
    generations = [record for record in records if isinstance(record, Generation)]
    timings = [record for record in records if isinstance(record, Timing)]
    alone = [one for one in generations if one.mode == "alone"]
    speculative = [one for one in generations if one.mode == "speculative"]
    if not any(one.tokens for one in alone) or not any(one.tokens for one in speculative):
        raise ValueError("no token was generated; benchmark texts that are not empty")
    part = _seconds_per_step(timings)
    speedup = _speedup(alone, speculative)
    tau, alpha = _acceptance(speculative)
    elsewhere = [record for record in records if isinstance(record, Elsewhere)]
    prediction = forecast = None
    if gamma is not None:
        prediction = _prediction(alone, speculative, part, gamma, speedup.ratio, tau, alpha)
        if elsewhere:
            forecast = _forecast(alone, speculative, part, prediction, speedup, elsewhere)
    baseline = _baseline(alone, part, step_bytes)
    latency = {"alone": _latency(alone, baseline.target_prefill + baseline.target_step)}
    if prediction is not None:
        iteration = prediction.draft + prediction.verify + prediction.rest
        latency["speculative"] = _latency(speculative, prediction.prefill + iteration)
    return Summary(
        texts=len({one.text for one in generations}),
        repeats=len({one.repeat for one in generations}),
        seconds={"alone": _quantiles(alone), "speculative": _quantiles(speculative)},
        latency=latency,
        speedup=speedup,
        identical=_identical(alone, speculative) if same_output else None,
        tau=tau,
        alpha=alpha,
        baseline=baseline,
        prediction=prediction,
        forecast=forecast,
    )


def alpha_from_tau(tau: float, gamma: int) -> float:
    """The alpha at which `theory.expected_tokens(alpha, gamma)` is tau, by bisection.

    Cut last calls and dependent acceptances are in it, so it differs from `empirical_alpha`.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if theory.expected_tokens(middle, gamma) < tau:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _acceptance(generations: Sequence[Generation | Elsewhere]) -> tuple[float, float | None]:
    """tau, and alpha or None."""
    tau = theory.block_efficiency(
        [len(one.tokens) for one in generations], [one.calls for one in generations]
    )
    alpha = theory.empirical_alpha(
        np.concatenate([one.accepted for one in generations]),
        np.concatenate([one.drafted for one in generations]),
    )
    return tau, None if math.isnan(alpha) else alpha


def _speedup(alone: Sequence[Generation], speculative: Sequence[Generation]) -> Speedup:
    before, after = _medians(alone, _seconds), _medians(speculative, _seconds)
    texts = list(before)
    pairs = np.array([[before[text], after[text]] for text in texts])
    ratio = pairs[:, 0].sum() / pairs[:, 1].sum()
    drawn = np.random.default_rng(0).integers(len(texts), size=(RESAMPLES, len(texts)))
    sums = pairs[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    longer = _total(speculative, _tokens) / _total(alone, _tokens)
    return Speedup(
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        per_token=float(ratio * longer),
        median_text=float(np.median(pairs[:, 0] / pairs[:, 1])),
    )


def _baseline(
    alone: Sequence[Generation], part: Mapping[str, float], step_bytes: int | None
) -> Baseline:
    prefill, step = part["target_prefill"], part["target_step"]
    scans = _total(alone, _tokens) * step
    bandwidth = READ_BYTES / part["fastest_read"]
    return Baseline(
        target_prefill=prefill,
        target_step=step,
        over_scan=_total(alone, lambda one: one.seconds - prefill) / scans,
        over_scan_with_prefill=_total(alone, _seconds) / scans,
        bandwidth=bandwidth,
        floor=None if step_bytes is None else step_bytes / bandwidth,
    )


def _prediction(
    alone: Sequence[Generation],
    speculative: Sequence[Generation],
    part: Mapping[str, float],
    gamma: int,
    measured: float,
    tau: float,
    alpha: float | None,
) -> Prediction:
    step, verify, prefill = part["target_step"], part["target_verify"], part["prefill"]
    draft = part["drafter_first"] + (gamma - 1) * part["drafter_step"]
    cost_ratio, verify_cost = draft / gamma / step, verify / step
    iteration = _total(speculative, lambda one: one.seconds - prefill) / _total(speculative, _calls)
    predicted = _total(alone, lambda one: part["target_prefill"] + one.calls * step) / _total(
        speculative, lambda one: prefill + one.calls * (draft + verify)
    )
    return Prediction(
        gamma=gamma,
        prefill=prefill,
        cost_ratio=cost_ratio,
        verify_cost=verify_cost,
        alpha_from_tau=alpha_from_tau(tau, gamma),
        long_generation=None
        if alpha is None
        else theory.speedup(alpha, gamma, cost_ratio, verify_cost),
        these_texts=predicted,
        measured_over_predicted=measured / predicted,
        draft=draft,
        verify=verify,
        rest=iteration - draft - verify,
    )


def _forecast(
    alone: Sequence[Generation],
    speculative: Sequence[Generation],
    part: Mapping[str, float],
    prediction: Prediction,
    speedup: Speedup,
    elsewhere: Sequence[Elsewhere],
) -> Forecast:
    tau, alpha = _acceptance(elsewhere)
    step, prefill, before = part["target_step"], part["prefill"], part["target_prefill"]
    per_token = (prediction.draft + prediction.verify) / tau
    whole = _total(alone, lambda one: before + len(one.tokens) * step) / _total(
        alone, lambda one: prefill + len(one.tokens) * per_token
    )
    seconds = _total(alone, lambda one: one.seconds - before) / _total(alone, _tokens)
    ours = _total(speculative, lambda one: one.seconds - prefill) / _total(speculative, _tokens)
    return Forecast(
        split=elsewhere[0].split,
        texts=len(elsewhere),
        tau=tau,
        alpha=alpha,
        decoding=step / per_token,
        whole=whole,
        measured_decoding=seconds / ours,
        measured_over_decoding=seconds / ours / (step / per_token),
        measured_over_whole=speedup.per_token / whole,
    )


def _latency(generations: Sequence[Generation], first_token: float) -> Latency:
    """The first call's tokens are on average those of any call."""
    calls = _total(generations, _calls)
    seconds = _total(generations, lambda one: one.seconds - first_token)
    tokens = _total(generations, _tokens)
    later = tokens - tokens / calls * len({one.text for one in generations})
    return Latency(first_token, seconds / later if later else math.nan)


def _identical(alone: Sequence[Generation], speculative: Sequence[Generation]) -> int:
    tokens = {(one.text, one.repeat): one.tokens for one in alone}
    return sum(tokens[one.text, one.repeat] == one.tokens for one in speculative)


def _quantiles(generations: Sequence[Generation]) -> Quantiles:
    seconds = list(_medians(generations, _seconds).values())
    return Quantiles(*(float(value) for value in np.quantile(seconds, [0.1, 0.5, 0.9, 0.99])))


def _seconds_per_step(timings: Sequence[Timing]) -> dict[str, float]:
    """Part -> median seconds of one model call, or of one prefill; and the fastest reading."""
    seconds = collections.defaultdict(list)
    for timing in timings:
        seconds[timing.part].append(timing.seconds / timing.steps)
    medians = {part: statistics.median(values) for part, values in seconds.items()}
    return medians | {"fastest_read": min(seconds["memory_read"])}


def _total(generations: Sequence[Generation], value: Callable[[Generation], float]) -> float:
    """The estimator: the sum over texts of the median over repeats."""
    return sum(_medians(generations, value).values())


def _medians(
    generations: Sequence[Generation], value: Callable[[Generation], float]
) -> dict[int, float]:
    """Text -> the median over repeats."""
    values = collections.defaultdict(list)
    for one in generations:
        values[one.text].append(value(one))
    return {text: statistics.median(values[text]) for text in sorted(values)}


def _seconds(one: Generation) -> float:
    return one.seconds


def _tokens(one: Generation) -> float:
    return len(one.tokens)


def _calls(one: Generation) -> float:
    return one.calls
