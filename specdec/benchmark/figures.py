"""What a summary says, field by field. Letters as in `theory`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from specdec.types import Part


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
      brings tau tokens on average). per_token: TPOT, of each token that is not of it;
      None if no text had one.
    """

    first_token: float
    per_token: float | None


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

    gamma: tokens of a draft; None where that varies.
    prefill: seconds, all models.
    cost_ratio: c, the seconds that a draft's models take / its tokens / target_step; 0 where no
      model drafts.
    verify_cost: v, the seconds of the target's call / target_step.
    alpha_from_tau: the alpha at which `theory.expected_tokens` is tau; None without gamma.
    long_generation: theory.speedup(alpha, gamma, c, v), likewise.
    these_texts: Speedup.ratio, had every generation of n target calls taken its prefill + n
      target_step, alone, or its prefill + n (draft + verify).
    measured_over_predicted: Speedup.ratio / these_texts.
    draft, verify, rest: seconds of one iteration; rest is what is measured and in neither part.
    parts: the model calls of an iteration, of these texts where lengths vary.
    by_turns: how many times as long the draft's calls take with the target's between them as on
      their own, which is in `draft`; 1 where that was not timed.
    """

    gamma: int | None
    prefill: float
    cost_ratio: float
    verify_cost: float
    alpha_from_tau: float | None
    long_generation: float | None
    these_texts: float
    measured_over_predicted: float
    draft: float
    verify: float
    rest: float
    parts: Sequence[Part] = ()
    by_turns: float = 1.0


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What is to be expected of these texts by the parts and the acceptance of others.

    split, texts: what those are. tau, alpha: theirs.
    decoding: tau T / I, the speed-up without prefill, with T the target's step and I the draft and
      verify of an iteration as those texts had them; (gamma c + v) T where lengths do not vary.
    whole: (E + m T) / (E' + m / tau I), sums over texts, with E and E' the prefill of the target
      and of all models, and m the tokens of the target alone.
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
    conditional, joint: acceptance by position in the draft, `theory.acceptance_by_position`; None
      where nothing was tested.
    prediction: None if nothing says what an iteration calls.
    forecast: None also without texts of another split.
    exact: whether the output has the target's law. If not, only times mean something.
    depth: the mean over calls of the target's layers; None if calls go through all.
    broken_drafts: drafts of speculation that ended early, see `Trace`.
    """

    texts: int
    repeats: int
    seconds: Mapping[str, Quantiles]  # by mode
    latency: Mapping[str, Latency]  # by mode; of speculation only with a prediction
    speedup: Speedup
    identical: int | None
    tau: float  # tokens per target call
    alpha: float | None
    baseline: Baseline
    prediction: Prediction | None
    forecast: Forecast | None = None
    exact: bool = True
    conditional: Sequence[float | None] = ()
    joint: Sequence[float | None] = ()
    depth: float | None = None
    broken_drafts: int = 0
