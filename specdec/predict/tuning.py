"""The search for the best draft length: the schedules that are tried, and their predicted times."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec.common.statistics import Estimate, ratio
from specdec.common.tables import columns
from specdec.measure.alphas import Accepted
from specdec.measure.opinions import recorded
from specdec.measure.parts import Calls
from specdec.plan import Plan
from specdec.predict.costs import Costs
from specdec.predict.schedule_replay import kind_of
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Disco,
    Entropy,
    Fixed,
    Heuristic,
    JointConfidence,
)

LONGEST = 10
OTHERS = (3, 5, 7)  # longest drafts that are tried for the best of each kind that varies
WIDTHS = (1, 3, 7)  # draft lengths that the target's call is narrowed to
OF_PATHS = (2, 4, 6, 8)  # draft lengths that are tried with several paths, which are decoded anew
CONFIDENCES = tuple(x / 10 for x in range(1, 10))
ENTROPIES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


class Candidate(NamedTuple):
    """A schedule to try."""

    kind: str  # the name of its file in gin/schedules/
    setting: float | None  # its gamma or its threshold; None if it has neither
    schedule: Any  # a `Schedule`, a dataclass with fields of its own


class Tried(NamedTuple):
    """The predicted time of a candidate."""

    variant: str  # the drafter's name, '' for the run's own
    candidate: Candidate  # the schedule
    tokens_per_call: float  # of all texts
    seconds: np.ndarray  # [texts] of each text, with its prefill

    @property
    def varies(self) -> bool:
        """Whether the lengths of drafts vary."""
        return len(self.candidate.schedule.buckets) > 1

    def total(self, among: np.ndarray) -> float:
        """Returns the seconds of some texts, [texts] bool."""
        return float(self.seconds[among].sum())


def buckets(longest: int) -> tuple[int, ...]:
    """Returns the draft lengths for which a schedule of drafts up to `longest` tokens has calls."""
    return (*(width for width in WIDTHS if width < longest), longest)


def units(plan: Plan, costs: Costs, lengths: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """Returns c, and v of a target call on each of these drafts, in target steps of one token."""
    widths = (plan.target.computed_width(length + 1) for length in lengths)
    v = tuple(round(costs.calls[Calls("target", width)] / costs.step, 3) for width in widths)
    drafting = sum(costs.calls[Calls(role, width)] * times for role, width, times in _drafts(plan))
    return round(drafting / costs.step, 4), v


def _drafts(plan: Plan) -> Iterator[tuple[str, int, float]]:
    """Yields the calls of one more draft token, which a draft of two has and one of one lacks."""
    dearest = len(plan.sources) - 1  # the last source
    shorter, longer = (plan.computed(plan.drafter.parts(length, dearest)) for length in (1, 2))
    times_of_shorter = {(role, width): times for role, width, times in shorter}
    for role, width, times in longer:
        if extra := times - times_of_shorter.get((role, width), 0):
            yield role, width, extra


def fixed(longest: int) -> Iterator[Candidate]:
    """Yields every draft length; drafting stops where the text ends."""
    for gamma in range(1, longest + 1):
        yield Candidate("fixed", gamma, Fixed(gamma, stop_at_end=True))


def of_paths(longest: int) -> Iterator[Candidate]:
    """Yields the draft lengths that are tried with several paths, at least one."""
    for gamma in [x for x in OF_PATHS if x <= longest] or [longest]:
        yield Candidate("fixed", gamma, Fixed(gamma))


def varying(
    plan: Plan, costs: Costs, longest: int, passes: Sequence[Accepted]
) -> Iterator[Candidate]:
    """Yields schedules of drafts up to `longest` tokens whose lengths vary."""
    lengths, prior = buckets(longest), acceptance(plan, passes)
    c, v = units(plan, costs, lengths)
    for threshold in CONFIDENCES:
        yield Candidate("confidence", threshold, Confidence(threshold, buckets=lengths))
        yield Candidate("joint_confidence", threshold, JointConfidence(threshold, buckets=lengths))
    for threshold in ENTROPIES:
        yield Candidate("entropy", threshold, Entropy(threshold, buckets=lengths))
    if isinstance(plan.schedule, Disco):
        for threshold in CONFIDENCES:
            yield Candidate("disco", threshold, Disco(threshold, buckets=lengths))
    yield Candidate("cost_optimal", None, CostOptimal(c, v, lengths, prior))
    yield Candidate("heuristic", None, Heuristic(min(5, longest), lengths))
    if len(lengths) > 1:
        yield Candidate("fixed", longest, Fixed(longest, shorter=(0, *lengths[:-1])))


def acceptance(plan: Plan, passes: Sequence[Accepted]) -> float:
    """Returns the share of accepted tokens, each drafted after the text before it."""
    drafters = list(recorded(plan.drafter))
    if not drafters:
        return CostOptimal.prior
    # Of a block, what is next.
    accepted = [
        text.kept(name, kind_of(drafter)).reshape(len(text.output), -1)[:, 0]
        for name, drafter in drafters
        for text in passes
    ]
    return round(float(np.clip(np.mean(np.concatenate(accepted)), 0.05, 0.95)), 2)


def shorter(tried: Sequence[Tried], among: np.ndarray, longest: int) -> Iterator[Candidate]:
    """Yields the best schedule of each varying kind, with shorter drafts."""
    by_kind: dict[str, list[Tried]] = collections.defaultdict(list)
    for result in tried:
        if result.varies and result.candidate.schedule.buckets[-1] == longest:
            by_kind[result.candidate.kind].append(result)
    for results in by_kind.values():
        kind, setting, schedule = fastest(results, among).candidate
        for length in OTHERS:
            if length < longest:
                shown = length if kind == "fixed" else setting
                yield Candidate(kind, shown, schedule.up_to(length))


def fastest(tried: Sequence[Tried], among: np.ndarray) -> Tried:
    """Returns the candidate that takes the least time on texts [texts] bool."""
    return min(tried, key=lambda x: x.total(among))


@dataclasses.dataclass(frozen=True)
class Result:
    """The findings of a search for one drafter; figures are of texts that decided nothing."""

    variant: str  # the drafter's name
    best: Tried  # the fastest on the other texts
    static: Tried  # the fastest of the fixed draft lengths
    tried: Sequence[Tried]  # all candidates, the fastest first
    alone: np.ndarray  # [texts] seconds of the target alone
    oracle: np.ndarray  # [texts] seconds if every draft stopped just before its first rejection

    @classmethod
    def of(
        cls,
        variant: str,
        tried: Sequence[Tried],
        alone: np.ndarray,
        oracle: np.ndarray,
        deciding: np.ndarray,
        others: np.ndarray,
    ) -> Result:
        """Returns the result of all candidates; `deciding` and `others` are [texts] bool."""
        static = [x for x in tried if x.candidate.kind == "fixed" and not x.varies]
        chosen = fastest(tried, deciding), fastest(static, deciding)
        ranked = sorted(tried, key=lambda x: x.total(others))
        best, best_static, *cut = (
            x._replace(seconds=x.seconds[others]) for x in (*chosen, *ranked)
        )
        return cls(variant, best, best_static, cut, alone[others], oracle[others])

    def speedup(self, tried: Tried) -> Estimate:
        """Returns a candidate's speed relative to the target alone."""
        return ratio(self.alone, tried.seconds)

    @property
    def regret(self) -> float:
        """The relative excess time of `best` over the fastest candidate on these texts."""
        return float(self.best.seconds.sum() / self.tried[0].seconds.sum()) - 1

    @property
    def headroom(self) -> float:
        """The share of the time between the best fixed length and the oracle that `best` gains."""
        seconds = [float(x.sum()) for x in (self.static.seconds, self.best.seconds, self.oracle)]
        return (seconds[0] - seconds[1]) / (seconds[0] - seconds[2])

    def in_words(self) -> str:
        """Returns the predicted speed-up, in words."""
        speedup = self.speedup(self.best)
        if speedup.value <= 1:
            return "no draft pays, the target alone is faster"
        return f"{speedup.value:.2f} times as fast as the target alone ({speedup.interval()})"


def lines(result: Result) -> Iterator[str]:
    """Yields the best schedule, the fastest other one of each kind, and its gain, as lines."""
    rows = [("predicted", "95 % interval", "tokens/call", "  schedule")]
    kinds: dict[tuple[str, bool], Tried] = {}
    for tried in result.tried:
        if tried.candidate != result.best.candidate:
            kinds.setdefault((tried.candidate.kind, tried.varies), tried)
    for tried in (result.best, *kinds.values()):
        speedup, tokens = result.speedup(tried), f"{tried.tokens_per_call:.2f}"
        schedule = f"  {tried.candidate.schedule}"  # last, since its name may be long
        rows.append((f"{speedup.value:.2f}", speedup.interval(), tokens, schedule))
    oracle = ratio(result.alone, result.oracle)
    rows.append((f"{oracle.value:.2f}", oracle.interval(), "", "  an oracle of refusals"))
    yield from columns(rows, ">9", ">16", ">13", "")
    yield f"best     {result.best.candidate.schedule}: {result.in_words()}"
    over = ratio(result.static.seconds, result.best.seconds)
    yield (
        f"         {over.value - 1:+.1%} ({over.low - 1:+.1%} to {over.high - 1:+.1%}) over "
        f"{result.static.candidate.schedule}, {result.headroom:.0%} of what an oracle would gain; "
        f"{result.regret:.1%} behind the fastest on these texts"
    )
    yield "         it was chosen on one half of the texts; the table is of the other half"
