"""The schedules that `specdec tune` tries, and the choice of the fastest one."""

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
OTHERS = (3, 5, 7)  # shorter longest drafts, tried for the best schedule of each varying kind
WIDTHS = (1, 3, 7)  # draft lengths with a target call of their own, in addition to the longest
OF_PATHS = (2, 4, 6, 8)  # draft lengths tried with several paths; few, as texts are decoded again
CONFIDENCES = tuple(x / 10 for x in range(1, 10))
ENTROPIES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


class Candidate(NamedTuple):
    """A schedule to try."""

    kind: str  # the name of its file in gin/schedules/
    setting: float | None  # its gamma or its threshold; None if it has neither
    schedule: Any  # a dataclass that inherits `Schedule`


class Tried(NamedTuple):
    """A candidate with its predicted time."""

    variant: str  # the variant's name, '' for the run's drafter
    candidate: Candidate
    tokens_per_call: float  # over all texts
    seconds: np.ndarray  # [texts] the predicted seconds of each text, with prefill

    @property
    def varies(self) -> bool:
        """Whether the lengths of drafts vary."""
        return len(self.candidate.schedule.buckets) > 1

    def total(self, among: np.ndarray) -> float:
        """Returns the summed seconds of the texts selected by `among`, [texts] bool."""
        return float(self.seconds[among].sum())


def buckets(longest: int) -> tuple[int, ...]:
    """Returns the buckets of schedules that draft up to `longest` tokens."""
    return (*(width for width in WIDTHS if width < longest), longest)


def units(plan: Plan, costs: Costs, lengths: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """Returns c, and v for drafts of each of `lengths`, both in target steps of one token."""
    widths = (plan.target.computed_width(length + 1) for length in lengths)
    v = tuple(round(costs.calls[Calls("target", width)] / costs.step, 3) for width in widths)
    drafting = sum(costs.calls[Calls(role, width)] * times for role, width, times in _drafts(plan))
    return round(drafting / costs.step, 4), v


def _drafts(plan: Plan) -> Iterator[tuple[str, int, float]]:
    """Yields (role, width, number) of the model calls that a second draft token adds."""
    dearest = len(plan.sources) - 1  # the last source is the most expensive
    shorter, longer = (plan.computed(plan.drafter.parts(length, dearest)) for length in (1, 2))
    times_of_shorter = {(role, width): times for role, width, times in shorter}
    for role, width, times in longer:
        if extra := times - times_of_shorter.get((role, width), 0):
            yield role, width, extra


def fixed(longest: int) -> Iterator[Candidate]:
    """Yields fixed draft lengths from 1 to `longest`; drafts stop at a stop id."""
    for gamma in range(1, longest + 1):
        yield Candidate("fixed", gamma, Fixed(gamma, stop_at_end=True))


def of_paths(longest: int) -> Iterator[Candidate]:
    """Yields the fixed draft lengths to try with several paths, at least one."""
    for gamma in [x for x in OF_PATHS if x <= longest] or [longest]:
        yield Candidate("fixed", gamma, Fixed(gamma))


def varying(
    plan: Plan, costs: Costs, longest: int, passes: Sequence[Accepted]
) -> Iterator[Candidate]:
    """Yields schedules that vary the draft length up to `longest` tokens."""
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
    """Returns the acceptance rate of the plan's drafters on recorded texts, within 0.05 .. 0.95."""
    drafters = list(recorded(plan.drafter))
    if not drafters:
        return CostOptimal.prior
    # Only the first token of a block counts.
    accepted = [
        text.kept(name, kind_of(drafter)).reshape(len(text.output), -1)[:, 0]
        for name, drafter in drafters
        for text in passes
    ]
    return round(float(np.clip(np.mean(np.concatenate(accepted)), 0.05, 0.95)), 2)


def shorter(tried: Sequence[Tried], among: np.ndarray, longest: int) -> Iterator[Candidate]:
    """Yields the best schedule of each varying kind, with its longest draft shortened."""
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
    """Returns the candidate with the least predicted time on texts `among`, [texts] bool."""
    return min(tried, key=lambda x: x.total(among))


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a search for one variant.

    Settings were chosen on half of the texts; all seconds here are of the other half."""

    variant: str  # the variant's name
    best: Tried  # the fastest candidate on the texts that decided
    static: Tried  # the fastest fixed draft length on the texts that decided
    tried: Sequence[Tried]  # all candidates, the fastest first
    alone: np.ndarray  # [texts] seconds of the target alone
    oracle: np.ndarray  # [texts] seconds if every draft stopped before its first rejected token

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
        """Returns the result: chosen on texts `deciding`, reported on `others`, [texts] bool."""
        static = [x for x in tried if x.candidate.kind == "fixed" and not x.varies]
        chosen = fastest(tried, deciding), fastest(static, deciding)
        ranked = sorted(tried, key=lambda x: x.total(others))
        best, best_static, *cut = (
            x._replace(seconds=x.seconds[others]) for x in (*chosen, *ranked)
        )
        return cls(variant, best, best_static, cut, alone[others], oracle[others])

    def speedup(self, tried: Tried) -> Estimate:
        """Returns a candidate's predicted speed-up over the target alone, with an interval."""
        return ratio(self.alone, tried.seconds)

    @property
    def regret(self) -> float:
        """The time of `best` / the time of the fastest candidate on the reported texts, minus 1."""
        return float(self.best.seconds.sum() / self.tried[0].seconds.sum()) - 1

    @property
    def headroom(self) -> float:
        """The time that `best` saves over `static` / the time that an oracle would save."""
        seconds = [float(x.sum()) for x in (self.static.seconds, self.best.seconds, self.oracle)]
        return (seconds[0] - seconds[1]) / (seconds[0] - seconds[2])

    def in_words(self) -> str:
        """Returns the predicted speed-up, in words."""
        speedup = self.speedup(self.best)
        if speedup.value <= 1:
            return "no draft pays, the target alone is faster"
        return f"{speedup.value:.2f} times as fast as the target alone ({speedup.interval()})"


def lines(result: Result) -> Iterator[str]:
    """Yields the printed lines: the chosen schedule, the fastest other ones, and its gain."""
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
    rows.append((f"{oracle.value:.2f}", oracle.interval(), "", "  an oracle of rejections"))
    yield from columns(rows, ">9", ">16", ">13", "")
    yield f"best     {result.best.candidate.schedule}: {result.in_words()}"
    over = ratio(result.static.seconds, result.best.seconds)
    yield (
        f"         {over.value - 1:+.1%} ({over.low - 1:+.1%} to {over.high - 1:+.1%}) over "
        f"{result.static.candidate.schedule}, {result.headroom:.0%} of what an oracle would gain; "
        f"{result.regret:.1%} slower than the fastest on these texts"
    )
    yield "         it was chosen on one half of the texts; the table is of the other half"
