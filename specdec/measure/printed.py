"""The printed lines of a benchmark's figures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specdec.common.environment import Hardware, device_in_words
from specdec.common.tables import columns
from specdec.common.terminal import counted
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.measure.estimator import Spread
from specdec.measure.summary import (
    Baseline,
    BenchmarkPrediction,
    BenchmarkSummary,
    GreedyFigures,
    PredictedByOthers,
)
from specdec.plan import Plan
from specdec.types import verifies

BUSY = 0.5  # load average per core, before the measurement
NOISY, USELESS = 1.25, 2.0  # limits of `Spread.high` / `Spread.low`

_USELESS = "trust no figure here, the speed-up included; measure again on an idle machine"


def sentence(summary: BenchmarkSummary, plan: AnyPlan, environment: Hardware) -> str:
    """Returns the speed-up, the identity of outputs and the settings in one sentence."""
    speedup, outputs = summary.speedup.over_texts, summary.texts * summary.repeats
    device = f"on {device_in_words(environment)}"
    if isinstance(plan, BeamPlan):
        beams = "the same best beam" if plan.best_only else "the same beams"
        less = "slower" if speedup.high < 1 else "no faster"
        phrases = (
            f"{speedup.value:.2f} times as fast as plain beams ({speedup.interval()})",
            *([f"so {less} than without a draft"] if speedup.value < 1 else []),
            f"{summary.identical} of {outputs} texts {beams}",
            f"{plan.beams} beams",
            f"drafts of {plan.draft_beams} beams and {counted(plan.depth, 'step')}",
        )
        return ", ".join((*phrases, device))
    if not summary.exact:
        same = "outputs NOT EXACT"
    elif summary.identical is None:
        same = "outputs of the same distribution"
    else:
        same = f"{summary.identical} of {outputs} texts identical"
    first = f"{speedup.value:.2f} times as fast as the target alone ({speedup.interval()})"
    drafter = type(plan.drafter).__name__ if plan.drafts else str(plan.target)
    drafts = (drafter, _draft_length(plan)) if plan.drafts else (drafter,)
    return ", ".join((first, same, *drafts, device))


def _draft_length(plan: Plan) -> str:
    tokens = f"{counted(plan.longest_draft, 'token')} per draft"
    return tokens if plan.gamma is not None else f"up to {tokens}"


def lines(summary: BenchmarkSummary) -> Iterator[str]:
    """Yields the lines of the table of all figures, with times in milliseconds."""
    if not summary.exact:
        yield "NOT EXACT: only the times are meaningful, not the texts\n"
    yield from _seconds(summary)
    yield ""
    yield from _speedup(summary)
    unit = "step" if summary.beams else "token"
    yield _figure(f"{unit}s per call", summary.tau, "of the target")
    if summary.depth is not None:
        yield _figure("layers", summary.depth, "of a target call, mean; alone it has all")
    if summary.alpha is not None:
        tested = "accepted / tested draft tokens"
        if summary.beams:
            tested = "drafted steps that had all beams"
        yield _figure("alpha", summary.alpha, tested)
        yield _shares("  by position", summary.conditional, "accepted, if all before it were")
        yield _shares("  up to there", summary.joint, "of drafts this long, accepted up to here")
    if summary.broken_drafts:
        meaning = "ended early: the drafter's probabilities were not a distribution"
        yield f"{'broken drafts':20}{summary.broken_drafts:>9}  {meaning}"
    if summary.prediction:
        yield from _predicted(summary.prediction, summary.baseline, unit)
    if summary.forecast:
        yield from _predicted_by_others(summary.forecast)
    yield from _alone(summary.baseline, unit)


def _seconds(summary: BenchmarkSummary) -> Iterator[str]:
    """Yields a table of the quantiles of each mode's seconds, and of its latency if known."""
    drafts = summary.alpha is not None or summary.depth is None
    names = {"alone": "target alone", "speculative": "speculative" if drafts else "leaving early"}
    if summary.beams:
        names = {"alone": "plain beams", "speculative": "drafted beams", "greedy": "drafted greedy"}
    latencies = ("TTFT", "TPOT") if summary.latency else ()
    rows: list[tuple[str, ...]] = [("ms per text", "p10", "p50", "p90", "p99", *latencies)]
    for mode, name in names.items():
        cells = [f"{1e3 * x:.1f}" for x in dataclasses.astuple(summary.seconds[mode])]
        if latency := summary.latency.get(mode):
            later = latency.per_token
            cells.append(f"{1e3 * latency.first_token:.1f}")
            cells.append("-" if later is None else f"{1e3 * later:.2f}")
        rows.append((name, *cells))
    return columns(rows, "20", ">9")


def _speedup(summary: BenchmarkSummary) -> Iterator[str]:
    speedup = summary.speedup
    over_texts = speedup.over_texts
    yield _figure("speed-up", over_texts.value, f"95 % interval {over_texts.interval()}")
    if not summary.beams:
        yield _figure("  per token", speedup.per_token, "")
    yield _figure("  median text", speedup.median_text, "")
    if summary.greedy:
        yield from _greedy(summary.greedy)
    if summary.identical is not None:
        outputs = summary.texts * summary.repeats
        yield f"{'identical outputs':20}{summary.identical:>9} of {outputs}"


def _greedy(greedy: GreedyFigures) -> Iterator[str]:
    over_texts = greedy.speedup.over_texts
    meaning = f"times as fast as plain beams, 95 % interval {over_texts.interval()}"
    yield _figure("drafted greedy", over_texts.value, meaning)
    yield _figure("  tokens per call", greedy.tau, "of the target, one text and not the best")


def _predicted(prediction: BenchmarkPrediction, baseline: Baseline, unit: str) -> Iterator[str]:
    gamma, step = prediction.gamma, baseline.target_step
    if prediction.alpha_from_tau is not None:
        meaning = f"that independent acceptances would need for these {unit}s per call"
        yield _figure("  if independent", prediction.alpha_from_tau, meaning)
    yield ""
    yield _figure("c", prediction.cost_ratio, f"a draft {unit}, in target steps")
    if prediction.by_turns != 1:
        yield _figure(
            "  alternating", prediction.by_turns, "times a draft's calls run alone; c includes it"
        )
    tokens = "" if gamma is None else f" on {_width(prediction)} tokens"
    yield _figure("v", prediction.verify_cost, f"a target call{tokens}, in target steps")
    yield _figure("predicted speed-up", prediction.these_texts, "these texts, with prefill")
    if prediction.long_generation is not None:
        yield _figure("  long generation", prediction.long_generation, "from alpha, c and v")
    yield _figure("measured/predicted", prediction.measured_over_predicted, "")
    yield ""
    rows: list[tuple[str, ...]] = [("one iteration", "ms", "target steps")]
    for name in ("draft", "verify", "rest"):
        seconds = getattr(prediction, name)
        cells = f"{1e3 * seconds:.3f}", f"{seconds / step:.2f}"
        if seconds < 0:
            cells = "-", "-", "  the parts alone took longer than the whole"
        rows.append((f"  {name}", *cells))
    rows.append(("prefill, all", f"{1e3 * prediction.prefill:.3f}"))
    yield from columns(rows, "20", ">9", ">14", "")


def _predicted_by_others(others: PredictedByOthers) -> Iterator[str]:
    texts, without = f"{counted(others.texts, 'text')} of {others.split}", "without prefill"
    yield ""
    yield _figure("predicted by others", others.whole, f"per token, by {texts}")
    yield _figure("  measured", others.measured_over_whole * others.whole, "per token")
    yield _figure("  measured/predicted", others.measured_over_whole, "per token")
    yield _figure("  without prefill", others.decoding, "predicted, per token")
    yield _figure("  measured", others.measured_decoding, f"per token, {without}")
    yield _figure("  measured/predicted", others.measured_over_decoding, f"per token, {without}")
    yield _figure("  tokens per call", others.tau, "of those texts")
    if others.alpha is not None:
        yield _figure("  alpha", others.alpha, "of those texts")


def _width(prediction: BenchmarkPrediction) -> int:
    return next(part.width for part in prediction.parts if verifies(part.role))


def _alone(baseline: Baseline, unit: str) -> Iterator[str]:
    yield f"{'prefill, target':20}{1e3 * baseline.target_prefill:9.3f}"
    yield f"{'target step':20}{1e3 * baseline.target_step:9.3f}"
    yield ""
    yield _figure("target alone / scan", baseline.over_scan, f"per {unit}, without prefill")
    yield _figure("  with prefill", baseline.over_scan_with_prefill, "")
    if baseline.floor is not None:
        share, speed = baseline.floor / baseline.target_step, baseline.bandwidth / 1e9
        yield _figure("floor / target step", share, f"its bytes at the {speed:.1f} GB/s read here")


def _shares(name: str, values: Sequence[float | None], meaning: str) -> str:
    """Returns a line of percentages by position in the draft; - where no token was tested."""
    shown = " ".join("-" if x is None else f"{100 * x:.0f}" for x in values)
    return f"{name:20}{shown:>9}  % {meaning}"


def _figure(name: str, value: float, meaning: str) -> str:
    shown = f"{value:.3f}" if value >= 0 else "-"  # a busy machine makes differences negative
    return f"{name:20}{shown:>9}  {meaning}".rstrip()


class Trust(NamedTuple):
    """The reliability of timings."""

    busy: bool  # whether the machine did other work
    facts: str  # how busy it was, and how much times varied
    meaning: str  # what follows from them, '' if all times can be trusted

    @property
    def useless(self) -> bool:
        """Whether not even the speed-up can be trusted."""
        return self.meaning == _USELESS


def trust_of(load: float | None, spread: Spread | None, cores: int) -> Trust:
    """Returns how busy the machine was, and how far the timings can be trusted."""
    crowded = load is not None and load > BUSY * cores
    ratio = spread.high / spread.low if spread else 1.0
    busy = crowded or ratio > NOISY
    facts = [] if load is None else [f"load average {load:.1f} on {counted(cores, 'core')} before"]
    if spread:
        facts.append(
            f"the same work took {spread.low:.2f} to {spread.high:.2f} times its median (middle "
            f"80 % of {spread.timings} timings)"
        )
    else:
        facts.append("nothing was timed twice")
    meaning = ""
    if ratio > USELESS:
        meaning = _USELESS
    elif busy:
        meaning = "runs alternate, so the interval of the speed-up holds; no other time is reliable"
    elif not spread:
        meaning = "how much times vary is not known; give more texts or repeats"
    return Trust(busy, ", ".join(facts), meaning)


def trust(
    load: float | None, spread: Spread | None, cores: int = os.cpu_count() or 1
) -> Iterator[str]:
    """Yields how busy the machine was, and how far the timings can be trusted, as lines."""
    busy, facts, meaning = trust_of(load, spread, cores)
    yield f"{'machine is busy' if busy else 'machine':20}{facts}"
    if meaning:
        yield f"{'':20}{meaning}"
