"""Every schedule against its rule in plain Python, and against the law: pytest tests/schedules"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import Params, Plan, decode, row_keys
from specdec.decoding import loop
from specdec.drafters import Autoregressive, PromptLookup
from specdec.sampling import Greedy, Sampling
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Disco,
    Entropy,
    Fixed,
    ForeseenCost,
    Guard,
    Heuristic,
    JointConfidence,
)
from specdec.schedules.schedule import signals
from specdec.testing import Bench, TableTarget
from specdec.types import Draft, Verdict
from specdec.verifiers import Block, GreedyMatch

SIZE, ROWS, LONGEST = 7, 48, 32
TARGET, DRAFT = TableTarget(SIZE, classes=3, scale=1.5), TableTarget(SIZE, classes=3, scale=0.7)
TABLES = [model.init(jax.random.key(i))["logits"] for i, model in enumerate((TARGET, DRAFT))]
CLASSIFIER = {
    name: np.random.default_rng(i).normal(0, 1, shape).astype(np.float32)
    for i, (name, shape) in enumerate(
        {"mean": 12, "hidden": (12, 4), "hidden_bias": 4, "out": 4, "out_bias": ()}.items()
    )
} | {"scale": np.linspace(0.5, 2, 12, dtype=np.float32)}
PARAMS = Params({"logits": TABLES[0]}, {"logits": sum(TABLES)}, schedule=CLASSIFIER)
LOGITS = [np.asarray(tree["logits"], np.float64) for tree in (PARAMS["target"], PARAMS["draft"])]


class Rule:
    """A schedule in plain Python: the longest draft, one text at a time, no arrays."""

    longest = 7

    def want(self) -> int:
        return self.longest

    def stops(self, q: list[float], token: int, index: int) -> bool:
        return False

    def learn(self, drafted: int, accepted: int) -> None: ...


class FixedRule(Rule):
    longest = 5


class ConfidenceRule(Rule):
    def stops(self, q, token, index):
        return q[token] < 0.6


class JointRule(Rule):
    def stops(self, q, token, index):
        self.joint = q[token] * (self.joint if index else 1)
        return self.joint < 0.4


class EntropyRule(Rule):
    def stops(self, q, token, index):
        return -sum(x * math.log(x) for x in q) > 1.4


class DiscoRule(Rule):
    def stops(self, q, token, index):
        entropy = -sum(x * math.log(x) for x in q)
        seen = [*sorted(q, reverse=True), 0, 0, 0, entropy, index]  # seven ids, ten places
        seen = [(x - CLASSIFIER["mean"][i]) / CLASSIFIER["scale"][i] for i, x in enumerate(seen)]
        odds = float(CLASSIFIER["out_bias"])
        for weights, bias, out in zip(
            CLASSIFIER["hidden"].T, CLASSIFIER["hidden_bias"], CLASSIFIER["out"], strict=True
        ):
            odds += max(0.0, bias + sum(w * x for w, x in zip(weights, seen, strict=True))) * out
        return 1 / (1 + math.exp(-odds)) < 0.6


class HeuristicRule(Rule):
    def __init__(self):
        self.length = 3

    def want(self):
        return self.length

    def learn(self, drafted, accepted):
        if drafted:
            more = self.length + 2 if accepted == drafted else self.length - 1
            self.length = min(max(more, 1), self.longest)


class CostOptimalRule(Rule):
    least, c, v = 1, 0.11, {1: 1.05, 3: 1.1, 7: 1.12}

    def __init__(self):
        self.tested, self.kept = [0] * self.longest, [0] * self.longest

    def want(self):
        best, time_of_best = 0, math.inf
        for length in range(self.least, self.longest + 1):
            rate = (4 * 0.7 + sum(self.kept)) / (4 + sum(self.tested))
            tokens, reach = 1.0, 1.0
            for tested, kept in list(zip(self.tested, self.kept, strict=True))[:length]:
                reach *= (4 * rate + kept) / (4 + tested)
                tokens += reach
            width = min(bucket for bucket in self.v if bucket >= length)
            if (time := (self.c * length + self.v[width]) / tokens) < time_of_best:
                best, time_of_best = length, time
        return best

    def learn(self, drafted, accepted):
        for i in range(min(drafted, accepted + 1)):
            self.tested[i] += 1
            self.kept[i] += i < accepted


class GuardedRule(ConfidenceRule):
    c, v = 0.11, {0: 1.0, 1: 1.2, 3: 1.3, 7: 1.5}

    def __init__(self):
        self.spent = self.tokens = 0

    def time(self, length):
        return self.c * length + self.v[min(bucket for bucket in self.v if bucket >= length)]

    def want(self):
        after = self.tokens + 1
        room = after + 0.1 * max(after, 12) - self.spent
        return max([0, *(x for x in range(1, self.longest + 1) if self.time(x) <= room)])

    def learn(self, drafted, accepted):
        self.spent += self.time(drafted)
        self.tokens += accepted + 1


class WithoutDraftsRule(CostOptimalRule):
    least, c, v = 0, 0.17, {0: 1.0, 1: 1.2, 3: 1.3, 7: 1.4}


CASES: dict[str, tuple[Any, Callable[[], Rule]]] = {
    "fixed": (Fixed(5, shorter=(0, 2)), FixedRule),
    "to the end": (Fixed(5, stop_at_end=True), FixedRule),
    "confidence": (Confidence(0.6), ConfidenceRule),
    "joint": (JointConfidence(0.4), JointRule),
    "entropy": (Entropy(1.4, buckets=(2, 7)), EntropyRule),
    "heuristic": (Heuristic(3), HeuristicRule),
    "cost optimal": (CostOptimal(0.11, (1.05, 1.1, 1.12), (1, 3, 7)), CostOptimalRule),
    "disco": (Disco(0.6), DiscoRule),
    "guarded": (Guard(Confidence(0.6), 0.11, (1.0, 1.2, 1.3, 1.5), 1.1, 12), GuardedRule),
    "perhaps no drafts": (
        CostOptimal(0.17, (1.0, 1.2, 1.3, 1.4), (0, 1, 3, 7)),
        WithoutDraftsRule,
    ),
}


def plan_of(schedule, verifier=None, sampling=None, drafter=None) -> Plan:
    drafter = drafter or Autoregressive(DRAFT, sampling or Greedy())
    return Plan(TARGET, drafter, verifier or GreedyMatch(), schedule, sampling or Greedy(), LONGEST)


def inputs_of(rows, seed: int = 0):
    texts = np.random.default_rng(seed).integers(2, SIZE, [ROWS, 3])
    return jnp.asarray(texts[np.asarray(rows)], jnp.int32)


def run(plan: Plan, rows=range(ROWS), seed: int = 0):
    rows = jnp.array(list(rows))
    return jax.device_get(decode(PARAMS, row_keys(3, rows), inputs_of(rows, seed), plan))


def simulated(rule: Rule, text_class: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, and of each call what is drafted and accepted, at temperature 0."""

    def likely(role: int, before: list[int]) -> np.ndarray:
        return LOGITS[role][text_class, sum(before) % SIZE, before[-1]]

    text, drafted, accepted = [0], [], []
    while len(text) <= LONGEST and 1 not in text:
        want, draft = min(rule.want(), LONGEST - len(text)), []
        while len(draft) < want:
            logits = likely(1, text + draft)
            q = np.exp(logits) / np.sum(np.exp(logits))
            draft.append(int(np.argmax(q)))
            if draft[-1] == 1 or rule.stops(q.tolist(), draft[-1], len(draft) - 1):
                break
        count = 0
        while count < len(draft) and draft[count] == np.argmax(likely(0, text + draft[:count])):
            count += 1
        text += draft[:count]
        if 1 not in text:
            text.append(int(np.argmax(likely(0, text))))
        drafted.append(len(draft))
        accepted.append(count)
        rule.learn(len(draft), count)
    return text[1:], drafted, accepted


OFTEN = ("confidence", "heuristic", "cost optimal", "disco", "guarded")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in OFTEN)) for x in CASES]
)
def test_it_does_what_its_rule_says(name):
    """At temperature 0 every call is the simulation's; other texts, with drafts of other lengths,
    are decoded by the same program."""
    schedule, rule = CASES[name]
    output, before = run(plan_of(schedule)), loop._decode._cache_size()
    lengths = set()
    for row, text in enumerate(np.asarray(inputs_of(range(ROWS)))):
        tokens, drafted, accepted = simulated(rule(), int(text.sum()) % 3)
        found = output.row(row)
        assert (found.tokens, found.drafted, found.accepted) == (tokens, drafted, accepted)
        lengths |= set(drafted)
    assert len(lengths) > 3, "lengths vary"
    again = run(plan_of(dataclasses.replace(schedule)), seed=1)
    assert not np.array_equal(again.trace.drafted, output.trace.drafted)
    assert loop._decode._cache_size() == before, "one program"


@pytest.mark.ci
def test_the_law_is_the_targets():
    """30,000 outputs against all that there are, each with its probability."""
    bench, sampling = Bench.create(), Sampling()
    bench = bench._replace(drafter=Autoregressive(bench.target, sampling))
    output = bench.run(Block(), Confidence(0.5, buckets=(1, 3)), sampling)
    result = bench.compare(output.tokens, sampling)
    assert result.passed, str(result)
    # Of the first call or the second, where there is room for more.
    drafted = np.array(output.trace.drafted[:, :2])
    assert len(np.unique(drafted[drafted > 0])) > 1


def excess(guard: Guard, output, row: int) -> float:
    """By how many target steps a text is dearer than it may be, at its worst moment."""
    c, v = guard.c, dict(zip(guard.buckets, guard.v, strict=True))
    alone, models = guard.prefill
    found, spent, tokens, worst = output.row(row), models - alone, 0, -math.inf
    for drafted, accepted in zip(found.drafted, found.accepted, strict=True):
        spent += c * drafted + v[min(bucket for bucket in v if bucket >= drafted)]
        tokens += accepted + 1
        allowed = tokens + (guard.limit - 1) * (alone + max(tokens, guard.horizon))
        worst = max(worst, spent - allowed)
    return worst


def worthless(guard: Guard):
    """Texts of a drafter that has another table altogether."""
    other = TableTarget(SIZE, classes=3, scale=4.0).init(jax.random.key(9))
    endless = dataclasses.replace(plan_of(guard), stop_ids=())
    params = PARAMS | {"draft": other}
    rows = jnp.arange(ROWS)
    return jax.device_get(decode(params, row_keys(3, rows), inputs_of(rows), endless))


GUARD = Guard(Fixed(5, shorter=(2,)), 0.2, (1.0, 1.2, 1.5), 1.1, 16)


def test_a_guarded_text_costs_no_more_than_its_limit():
    """After every call of every text, with a drafter that is worth nothing; which is tried again
    whenever something was earned."""
    output = worthless(GUARD)
    assert max(excess(GUARD, output, row) for row in range(ROWS)) < 1e-5  # float32 sums
    drafted = output.trace.drafted
    assert (drafted[:, 0] > 0).all() and (drafted == 0).sum() > 5 * (drafted > 0).sum()
    assert (drafted[:, 12:] > 0).any()


def test_a_guard_counts_what_was_read_before_the_first_token():
    """A drafter whose prefill is dear is not asked at first, and later is."""
    guard = dataclasses.replace(GUARD, prefill=(2.0, 3.5))
    output = worthless(guard)
    assert max(excess(guard, output, row) for row in range(ROWS)) < 1e-4  # float32 sums
    drafted = output.trace.drafted
    assert (drafted[:, 0] == 0).all() and (drafted[:, 1:] > 0).any()


def test_a_guard_affords_no_length_beyond_one_that_is_too_dear():
    """The call of three tokens is slower than that of seven."""
    costs = {"c": 0.05, "v": (1.0, 1.1, 3.0, 1.4), "limit": 1.66, "horizon": 1}
    guard = Guard(Fixed(7, shorter=(1, 3)), **costs)
    assert guard.want(guard.init(2)).tolist() == [1, 1]


def test_a_copy_that_was_not_found_costs_a_narrow_call():
    """Nothing is drafted, so that the call is as wide as that of the target alone."""
    plan = plan_of(Fixed(4, shorter=(0,)), drafter=PromptLookup())
    output, plain = run(plan), run(plan.alone())
    np.testing.assert_array_equal(output.tokens, plain.tokens)
    assert {0, 4} <= set(np.unique(output.trace.drafted[:, :9]))


def test_a_call_without_a_draft_teaches_nothing():
    nothing = Draft(jnp.zeros([2, 0], jnp.int32), None, jnp.zeros([2], jnp.int32))
    verdict = Verdict(jnp.zeros([2], jnp.int32), jnp.zeros([2], jnp.int32))
    for name in CASES.keys() - {"guarded"}:  # which pays for it
        schedule = CASES[name][0]
        state = schedule.init(2)
        after = schedule.update(state, nothing, verdict)
        jax.tree.map(np.testing.assert_array_equal, state, after)


@pytest.mark.parametrize("name", CASES)
def test_shorter_drafts_where_no_longer_ones_fit(name):
    schedule = CASES[name][0]
    shorter = schedule.up_to(2)
    assert shorter.buckets[-1] == 2 and type(shorter) is type(schedule)
    assert schedule.up_to(100) == schedule
    assert int(jnp.max(shorter.want(shorter.init(1)))) <= 2


def test_a_block_is_cut_where_its_tokens_cost_least():
    """Against all lengths, one by one; a wider call is never left half empty."""
    width = {0: 1.0, 1: 1.1, 4: 1.3, 7: 1.9}
    schedule = ForeseenCost(0.2, tuple(width.values()), buckets=tuple(width))
    kept = np.random.default_rng(0).beta(1, 0.5, [200, 7]).astype(np.float32)
    found = np.asarray(schedule.cut(jnp.asarray(kept)))
    for row, length in zip(kept.astype(float), found, strict=True):
        costs = []
        for n in range(8):
            tokens = 1 + sum(math.prod(row[: i + 1]) for i in range(n))
            costs.append((0.2 + width[min(x for x in width if x >= n)]) / tokens)
        assert costs[length] < min(costs) + 1e-6
    assert set(found) == set(width)
    guarded: Any = Guard(schedule, 0.2, schedule.v)
    np.testing.assert_array_equal(guarded.cut(jnp.asarray(kept)), found)
    assert not Guard(Fixed(3), 0.2, (1.0, 1.2)).cuts


def test_shorter_drafts_keep_the_costs_of_their_calls():
    costs = CostOptimal(0.1, (1.0, 1.2, 1.5), (0, 2, 5))
    assert costs.up_to(4) == CostOptimal(0.1, (1.0, 1.2, 1.5), (0, 2, 4))
    assert costs.up_to(1) == CostOptimal(0.1, (1.0, 1.2), (0, 1))
    foreseen = ForeseenCost(0.1, (1.0, 1.2, 1.5), buckets=(0, 2, 5))
    assert foreseen.up_to(1) == ForeseenCost(0.1, (1.0, 1.2), buckets=(0, 1))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Confidence(1.5), r"Confidence.threshold is 1.5; give a probability"),
        (lambda: JointConfidence(-1), r"JointConfidence.threshold is -1; give a probability"),
        (lambda: Confidence("0.4"), r"Confidence.threshold is '0.4'; give a probability"),
        (lambda: Confidence(float("nan")), r"Confidence.threshold is nan; give a probability"),
        (lambda: Confidence(0.4, buckets=(3, 1)), r"Confidence.buckets is \(3, 1\); give a tuple"),
        (lambda: Confidence(0.4, buckets=[1, 3]), r"Confidence.buckets is \[1, 3\]; give a tuple"),
        (lambda: Confidence(0.4, buckets=(0,)), r"Confidence.buckets is \(0,\); give a tuple"),
        (lambda: Confidence(0.4, buckets=()), r"Confidence.buckets is \(\); give a tuple"),
        (lambda: Disco(-0.1), r"Disco.threshold is -0.1; give a probability"),
        (lambda: Guard(None, 0, (1.0,)), r"Guard.schedule is None; give a schedule"),
        (lambda: Guard(Fixed(2), 0.1, (1.0,)), r"Guard.v is \(1.0,\); .* buckets \(0, 2\)"),
        (lambda: Guard(Fixed(2), 0.1, (1.0, 1.2), 1.0), r"Guard.limit is 1.0; give a number above"),
        (lambda: Guard(Fixed(2), 0.1, (1.0, 1.2), horizon=0), r"Guard.horizon is 0; give a posit"),
        (lambda: Entropy(-1), r"Entropy.threshold is -1; give a number of nats"),
        (lambda: Heuristic(0), r"Heuristic.start is 0; give a positive integer"),
        (lambda: Heuristic(8), r"Heuristic.start is 8; .* from 1 to the longest draft, 7"),
        (lambda: Fixed(0), "Fixed.gamma is 0; give a positive integer"),
        (lambda: Fixed(3, shorter=(3,)), r"Fixed.buckets is \(3, 3\); give a tuple of ascending"),
        (lambda: CostOptimal(-1, (1.0,), (2,)), r"CostOptimal.c is -1; give a number"),
        (lambda: ForeseenCost(0.1, (1.0,), buckets=(2, 4)), r"ForeseenCost.v is \(1.0,\); .*4\)"),
        (lambda: ForeseenCost("c", (1.0,), buckets=(2,)), r"ForeseenCost.c is 'c'; give a number"),
        (lambda: CostOptimal(0.1, (1.0,), (2, 4)), r"CostOptimal.v is \(1.0,\); .* \(2, 4\)"),
        (lambda: CostOptimal(0.1, 1.0, (2,)), r"CostOptimal.v is 1.0; give a tuple"),
        (lambda: CostOptimal(0.1, (0,), (2,)), r"CostOptimal.v is \(0,\); .* positive numbers"),
        (lambda: CostOptimal(0.1, (1.0,), (2,), prior=1), r"CostOptimal.prior is 1; .* between"),
        (lambda: CostOptimal(0.1, (1.0,), (2,), strength=0), r"CostOptimal.strength is 0; give"),
    ],
)
def test_what_is_no_schedule_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(1),
        lambda: Confidence(0, buckets=(0, 1)),
        lambda: JointConfidence(1, buckets=(1,)),
        lambda: Entropy(0),
        lambda: Heuristic(1, (1,)),
        lambda: CostOptimal(0, (1.0,), (1,)),
        lambda: Guard(Fixed(1), 0, (1.0, 1.0), 1.01, 1),
    ],
)
def test_the_least_that_makes_sense_is_a_schedule(make):
    assert make().buckets[-1] >= 1


def test_target_calls_are_as_wide_as_kernels_like_them():
    assert [1 + length for length in Confidence(0.4).buckets] == [2, 4, 8]


PROBS, DRAWN = jnp.array([[0.5, 0.25, 0.25]]), jnp.array([0])
NATS = float(signals(PROBS, DRAWN, 0).entropy[0])


@pytest.mark.parametrize(
    "schedule, stricter",
    [
        (Confidence(0.5), Confidence(0.51)),
        (JointConfidence(0.5), JointConfidence(0.51)),
        (Entropy(NATS), Entropy(NATS - 0.01)),
    ],
)
def test_at_its_threshold_drafting_goes_on(schedule, stricter):
    """Also as a replay asks. The probability is half, and the entropy 3/2 log 2."""
    assert NATS == pytest.approx(1.5 * math.log(2))
    seen = signals(PROBS, DRAWN, 0)
    for one, stops in ((schedule, False), (stricter, True)):
        _, stopped = one.stop((), one.init(1), jnp.int32(0), PROBS, DRAWN)
        assert stopped.tolist() == one.stops((), seen).tolist() == [stops]
