"""The figures as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from specdec.benchmark.summary import Baseline, Prediction, Quantiles, Summary


def lines(summary: Summary) -> Iterator[str]:
    """The table, line by line: times in milliseconds."""
    speedup, pairs = summary.speedup, summary.texts * summary.repeats
    yield f"{'ms per text':20}{'p10':>9}{'p50':>9}{'p90':>9}"
    yield _row("target alone", summary.seconds["alone"])
    yield _row("speculative", summary.seconds["speculative"])
    yield ""
    yield _figure(
        "speed-up", speedup.ratio, f"95 % interval {speedup.low:.2f} to {speedup.high:.2f}"
    )
    yield _figure("  per token", speedup.per_token, "")
    yield _figure("  median text", speedup.median_text, "")
    if summary.identical is not None:
        yield f"{'identical outputs':20}{summary.identical:>9} of {pairs}"
    yield _figure("tau", summary.tau, "tokens per target call")
    if summary.alpha is not None:
        yield _figure("alpha", summary.alpha, "accepted / tested drafts")
    if summary.prediction:
        yield from _predicted(summary.prediction, summary.baseline)
    yield from _alone(summary.baseline)


def _predicted(prediction: Prediction, baseline: Baseline) -> Iterator[str]:
    gamma, step = prediction.gamma, baseline.target_step
    yield _figure("alpha from tau", prediction.alpha_from_tau, "if acceptances were independent")
    yield ""
    yield _figure("c", prediction.cost_ratio, "a draft token, in target steps")
    yield _figure("v", prediction.verify_cost, f"a target call on {gamma + 1} tokens, likewise")
    yield _figure("predicted speed-up", prediction.these_texts, "these texts, with prefill")
    if prediction.long_generation is not None:
        yield _figure("  long generation", prediction.long_generation, "from alpha, c and v")
    yield _figure("measured/predicted", prediction.measured_over_predicted, "")
    yield ""
    yield f"{'one iteration':20}{'ms':>9}{'target steps':>14}"
    for name in ("draft", "verify", "rest"):
        seconds = getattr(prediction, name)
        yield f"  {name:18}{1e3 * seconds:9.3f}{seconds / step:14.2f}"
    yield f"{'prefill, both':20}{1e3 * prediction.prefill:9.3f}"


def _alone(baseline: Baseline) -> Iterator[str]:
    yield f"{'prefill, target':20}{1e3 * baseline.target_prefill:9.3f}"
    yield f"{'target step':20}{1e3 * baseline.target_step:9.3f}"
    yield ""
    yield _figure("target alone / scan", baseline.over_scan, "per token, without prefill")
    yield _figure("  with prefill", baseline.over_scan_with_prefill, "")


def _row(name: str, seconds: Quantiles) -> str:
    values = (seconds.p10, seconds.p50, seconds.p90)
    return f"{name:20}" + "".join(f"{1e3 * value:9.1f}" for value in values)


def _figure(name: str, value: float, meaning: str) -> str:
    return f"{name:20}{value:9.3f}  {meaning}".rstrip()
