"""From records to figures; pure functions."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from specdec import theory
from specdec.benchmark import estimator
from specdec.benchmark.estimator import Measured, total
from specdec.benchmark.figures import (
    Baseline,
    Forecast,
    Latency,
    Prediction,
    Quantiles,
    Speedup,
    Summary,
)
from specdec.benchmark.file import Elsewhere, Generation, Record
from specdec.statistics import bootstrap
from specdec.types import Part, TargetCall

# What is known of measured calls -> the model calls of an iteration, as `Plan.parts` tells them.
Parts: TypeAlias = Callable[[Iterable[TargetCall]], Sequence[Part]]


def summarize(
    records: Iterable[Record],
    *,
    parts: Parts | None,
    gamma: int | None,
    same_output: bool,
    exact: bool = True,
    step_bytes: int | None = None,
) -> Summary:
    """The figures of what `measure` gave, and `decode_elsewhere` for texts of one other split.

    Args:
      parts: None if nothing says what an iteration calls.
      gamma, same_output, exact: what the plan says of itself.
      step_bytes: of the parameters that one call of the target's `decode` reads.

    Raises:
      ValueError: nothing was generated.
    """
    found = Measured.of(records)
    alone, speculative = found.alone, found.speculative
    speedup, (tau, alpha) = _speedup(found), _acceptance(speculative)
    conditional, joint = theory.acceptance_by_position(*_calls(speculative))
    latency = {"alone": _latency(alone, found.prefill_alone + found.step)}
    prediction = forecast = None
    if parts is not None:
        prediction = _prediction(found, parts, gamma, speedup.ratio, tau, alpha)
        iteration = prediction.draft + prediction.verify + prediction.rest
        latency["speculative"] = _latency(speculative, found.prefill + iteration)
        forecast = _forecast(found, parts, speedup) if found.elsewhere else None
    return Summary(
        texts=len({one.text for one in alone}),
        repeats=len({one.repeat for one in alone}),
        seconds={"alone": _quantiles(alone), "speculative": _quantiles(speculative)},
        latency=latency,
        speedup=speedup,
        identical=_identical(found) if same_output else None,
        tau=tau,
        alpha=alpha,
        baseline=_baseline(found, step_bytes),
        prediction=prediction,
        forecast=forecast,
        exact=exact,
        conditional=_known(conditional),
        joint=_known(joint),
        depth=_mean_depth(speculative),
        broken_drafts=sum(one.broken_drafts for one in speculative),
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
    alpha = theory.empirical_alpha(*_calls(generations))
    return tau, None if math.isnan(alpha) else alpha


def _mean_depth(generations: Sequence[Generation]) -> float | None:
    depths = estimator.depths(generations)
    return None if depths is None else statistics.fmean(depths)


def _parts(parts: Parts, generations: Sequence[Generation | Elsewhere]) -> tuple[Part, ...]:
    """The model calls of an iteration, of these texts."""
    calls = (TargetCall.each(one.drafted, one.sources, one.depths) for one in generations)
    return tuple(parts(itertools.chain.from_iterable(calls)))


def _known(shares: np.ndarray) -> list[float | None]:
    """With None in place of nan, which JSON does not have."""
    return [None if math.isnan(x) else round(x, 4) for x in shares.tolist()]


def _calls(generations: Sequence[Generation | Elsewhere]) -> tuple[np.ndarray, np.ndarray]:
    """What each call accepted, and what was drafted for it."""
    return (
        np.concatenate([one.accepted for one in generations]),
        np.concatenate([one.drafted for one in generations]),
    )


def _speedup(found: Measured) -> Speedup:
    before, after = (
        estimator.medians(mode, estimator.seconds) for mode in (found.alone, found.speculative)
    )
    pairs = np.array([[seconds[text] for text in before] for seconds in (before, after)])
    ratio = np.divide(*pairs.sum(axis=1))
    low, high = bootstrap(pairs, lambda sums: sums[0] / sums[1])
    longer = total(found.speculative, estimator.tokens) / total(found.alone, estimator.tokens)
    return Speedup(
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        per_token=float(ratio * longer),
        median_text=float(np.median(pairs[0] / pairs[1])),
    )


def _baseline(found: Measured, step_bytes: int | None) -> Baseline:
    scans = total(found.alone, estimator.tokens) * found.step
    return Baseline(
        target_prefill=found.prefill_alone,
        target_step=found.step,
        over_scan=total(found.alone, lambda one: one.seconds - found.prefill_alone) / scans,
        over_scan_with_prefill=total(found.alone, estimator.seconds) / scans,
        bandwidth=found.bandwidth,
        floor=None if step_bytes is None else step_bytes / found.bandwidth,
    )


def _prediction(
    found: Measured,
    parts: Parts,
    gamma: int | None,
    ratio: float,
    tau: float,
    alpha: float | None,
) -> Prediction:
    calls = _parts(parts, found.speculative)
    draft, verify = found.iteration(calls)
    drafted = estimator.drafted(found.speculative)
    length = statistics.fmean(drafted) if gamma is None else gamma
    c, v = draft / length / found.step if length else 0.0, verify / found.step
    predicted = _ratio_of_parts(found, draft + verify)
    return Prediction(
        gamma=gamma,
        prefill=found.prefill,
        cost_ratio=c,
        verify_cost=v,
        alpha_from_tau=None if gamma is None else alpha_from_tau(tau, gamma),
        long_generation=None
        if gamma is None or alpha is None
        else theory.speedup(alpha, gamma, c, v),
        these_texts=predicted,
        measured_over_predicted=ratio / predicted,
        draft=draft,
        verify=verify,
        rest=_iteration(found) - draft - verify,
        parts=calls,
        by_turns=found.by_turns,
    )


def _iteration(found: Measured) -> float:
    """Seconds, as measured."""
    seconds = total(found.speculative, lambda one: one.seconds - found.prefill)
    return seconds / total(found.speculative, estimator.calls)


def _ratio_of_parts(found: Measured, iteration: float) -> float:
    """How many times as long the target alone takes, if nothing but the parts takes time."""
    before, step = found.prefill_alone, found.step
    return total(found.alone, lambda one: before + one.calls * step) / total(
        found.speculative, lambda one: found.prefill + one.calls * iteration
    )


def _forecast(found: Measured, parts: Parts, speedup: Speedup) -> Forecast:
    """By the parts, and what was drafted and accepted of the other split's texts."""
    tau, alpha = _acceptance(found.elsewhere)
    per_token = sum(found.iteration(_parts(parts, found.elsewhere))) / tau
    whole = total(
        found.alone, lambda one: found.prefill_alone + len(one.tokens) * found.step
    ) / total(found.alone, lambda one: found.prefill + len(one.tokens) * per_token)
    ratio = _per_token(found.alone, found.prefill_alone)
    ratio /= _per_token(found.speculative, found.prefill)
    return Forecast(
        split=found.elsewhere[0].split,
        texts=len(found.elsewhere),
        tau=tau,
        alpha=alpha,
        decoding=found.step / per_token,
        whole=whole,
        measured_decoding=ratio,
        measured_over_decoding=ratio / (found.step / per_token),
        measured_over_whole=speedup.per_token / whole,
    )


def _per_token(generations: Sequence[Generation], prefill: float) -> float:
    """Seconds, without prefill."""
    seconds = total(generations, lambda one: one.seconds - prefill)
    return seconds / total(generations, estimator.tokens)


def _latency(generations: Sequence[Generation], first_token: float) -> Latency:
    """The first call's tokens are on average those of any call."""
    calls = total(generations, estimator.calls)
    seconds = total(generations, lambda one: one.seconds - first_token)
    tokens = total(generations, estimator.tokens)
    later = tokens - tokens / calls * len({one.text for one in generations})
    return Latency(first_token, seconds / later if later else None)


def _identical(found: Measured) -> int:
    tokens = {(one.text, one.repeat): one.tokens for one in found.alone}
    return sum(tokens[one.text, one.repeat] == one.tokens for one in found.speculative)


def _quantiles(generations: Sequence[Generation]) -> Quantiles:
    seconds = list(estimator.medians(generations, estimator.seconds).values())
    return Quantiles(*(float(value) for value in np.quantile(seconds, [0.1, 0.5, 0.9, 0.99])))
