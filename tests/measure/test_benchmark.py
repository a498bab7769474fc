"""`specdec bench`: its figures on hand-made records, its protocol with a clock that only programs
advance, and one real run: pytest tests/measure/test_benchmark.py"""

import collections
import contextlib
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import Cycle, StopAfterUnlikely, bytes_run, check_lines, device_of, tiny_t5

from specdec import cli, tasks
from specdec.checkpoints import tables
from specdec.cli import settings, variants
from specdec.common import theory
from specdec.common.environment import environment
from specdec.decoding import row_keys
from specdec.drafters import Autoregressive, Drafter
from specdec.engine import Placement
from specdec.measure import benchmarking, printed
from specdec.measure.file import File, Generation, Timing, record
from specdec.measure.measurement import Measurement, measure_by_text, parts_of
from specdec.measure.parts import (
    MEMORY,
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    STEP,
    Calls,
    TimedPart,
    Turn,
    Workload,
    key_of,
    name_of,
    prefill,
    turn_of,
    turns,
)
from specdec.measure.summary import BenchmarkSummary, alpha_from_tau, summarize
from specdec.models.placement import device
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import Skipping, TableTarget
from specdec.testing.drafters import Constant
from specdec.types import DecodeOutput, Part, Trace
from specdec.verifiers import GreedyMatch, SyntheticAcceptance

GAMMA = 3
PARTS = {  # seconds of one call
    "memory_read": 2**29 / 100.0,  # 100 bytes a second
    "alone prefill": 5.0,
    "prefill": 7.0,
    "alone 1": 10.0,
    "target 4": 15.0,
    "target 2": 11.0,
    "draft 2": 2.0,
    "draft 1": 1.0,
    "other 2": 0.5,
    "other 1": 0.25,
}
DRAFT, VERIFY = 2.0 + 2 * 1.0, 15.0
TARGET = TableTarget(6)


@dataclasses.dataclass(frozen=True)
class Both(Drafter):
    """Asks two drafters with a model each, and takes the first one's word."""

    draft: Autoregressive
    other: Autoregressive

    def inner(self):
        return {"draft": self.draft, "other": self.other}

    def init(self, params, context):
        return [one.init(params, context) for one in (self.draft, self.other)]

    def propose(self, params, request, state):
        asked = zip((self.draft, self.other), state, strict=True)
        drafts = [one.propose(params, request, own) for one, own in asked]
        return drafts[0][0], [own for _, own in drafts]


ONE_MODEL = Autoregressive(TARGET, Greedy())
TWO_MODELS = Both(ONE_MODEL, Autoregressive(TableTarget(4), Greedy(), role="other"))
NO_MODEL = Constant(2)


def plan(drafter: Any = ONE_MODEL, **fields: Any) -> Plan:
    rest = {"verifier": GreedyMatch(), "schedule": Fixed(GAMMA), "sampling": Greedy()}
    return Plan(TARGET, drafter, **rest | fields, max_length=8)


PLAN = plan()


def generation(mode, text, seconds, *, tokens, accepted=(), repeat=0):
    tokens = list(range(2, 2 + tokens))
    accepted = list(accepted) or [0] * len(tokens)
    drafted = [GAMMA if mode == "speculative" else 0] * len(accepted)
    made = {"tokens": tokens, "drafted": drafted, "accepted": accepted}
    return Generation(**made, mode=mode, text=text, repeat=repeat, seconds=seconds)


def elsewhere(text, drafted=(GAMMA, GAMMA), accepted=(2, 0)):
    """A text of another split, of four tokens in two calls."""
    made = {"tokens": [2, 3, 4, 1], "drafted": drafted, "accepted": accepted}
    return Generation(**made, text=text, split="validation")


def timings():
    slow = [Timing("memory_read", 0, 0, 1e9, 1)] * 2  # what it can do is its best
    return [
        *slow,
        *(Timing(key_of(part), 0, 0, 32 * one, 32) for part, one in PARTS.items()),
    ]


def summarized(records, of: Plan | None = PLAN, **given) -> BenchmarkSummary:
    """With the parts of a plan; without one nothing is known of them."""
    told: dict[str, Any] = {"parts": None, "gamma": None, "same_output": True, "step_bytes": 800}
    if of:
        told |= {"parts": of.parts, "gamma": of.gamma, "exact": of.exact}
    return summarize(records, **told | given)


def summary_of(*pairs, **kwargs):
    """Of (seconds alone, seconds speculative) of one text each: 8 tokens, 4 calls."""
    records = timings()
    for text, (alone, speculative) in enumerate(pairs):
        records += [
            generation("alone", text, alone, tokens=8),
            generation("speculative", text, speculative, tokens=8, accepted=(3, 0, 1, 0)),
        ]
    return summarized(records, **kwargs)


@pytest.mark.ci
def test_a_generation_that_is_the_sum_of_its_parts_is_predicted_exactly():
    summary = summary_of((5 + 8 * 10, 7 + 4 * (DRAFT + VERIFY)))
    prediction = summary.prediction
    assert prediction.measured_over_predicted == pytest.approx(1)
    assert prediction.these_texts == pytest.approx(85 / 83)
    assert summary.speedup.over_texts.value == pytest.approx(85 / 83)
    assert (prediction.draft, prediction.verify) == (DRAFT, VERIFY)
    assert prediction.rest == pytest.approx(0, abs=1e-9)  # float64 seconds, below 100
    assert summary.baseline.over_scan == pytest.approx(1)


def test_acceptance_by_position_is_json_where_nothing_was_tested():
    summary = summary_of((85, 83))
    assert (summary.conditional, summary.joint) == ([0.5, 0.5, 1.0], [0.5, 0.25, 0.25])
    refused = generation("speculative", 0, 83, tokens=4, accepted=(0, 0, 0, 0))
    found = summarized([*timings(), generation("alone", 0, 85, tokens=4), refused])
    assert (found.conditional, found.joint) == ([0, None, None], [0, 0, 0])
    json.dumps(found.record(), allow_nan=False)
    assert "0 - -  % accepted, if all before it were" in "\n".join(printed.lines(found))


def test_what_the_engine_adds_is_seen():
    """2 seconds more per target call of speculation, half a second per one of the target alone."""
    summary = summary_of((5 + 8 * 10.5, 7 + 4 * (DRAFT + VERIFY + 2)))
    prediction, baseline = summary.prediction, summary.baseline
    assert prediction.rest == pytest.approx(2) and prediction.these_texts == pytest.approx(85 / 83)
    assert prediction.measured_over_predicted == pytest.approx((89 / 91) / (85 / 83))
    found = baseline.over_scan, baseline.over_scan_with_prefill, baseline.bandwidth, baseline.floor
    assert found == pytest.approx((1.05, 89 / 80, 100, 8))
    assert (baseline.target_prefill, baseline.target_step) == (5, 10)


def test_the_letters():
    summary = summary_of((85, 83))
    prediction, cost_ratio = summary.prediction, DRAFT / GAMMA / 10
    assert summary.tau == 8 / 4
    assert summary.alpha == pytest.approx(4 / 7)  # of 4 calls 3 end in a rejection
    assert (prediction.cost_ratio, prediction.verify_cost) == pytest.approx((cost_ratio, 1.5))
    long = theory.speedup(4 / 7, GAMMA, cost_ratio, 1.5)
    assert prediction.long_generation == pytest.approx(long)
    assert theory.expected_tokens(prediction.alpha_from_tau, GAMMA) == pytest.approx(2)
    for alpha, gamma in ((0.0, 4), (0.3, 1), (0.71, 4), (1.0, 7)):
        tau = theory.expected_tokens(alpha, gamma)
        assert alpha_from_tau(tau, gamma) == pytest.approx(alpha)


def test_the_headline_is_a_ratio_of_sums_with_a_paired_interval():
    """A quarter of the resamples of two texts holds one twice, a quarter the other. Texts of very
    different lengths with one ratio leave nothing uncertain."""
    speedup = summary_of((100, 100), (900, 300)).speedup
    assert speedup.over_texts.value == speedup.per_token == pytest.approx(1000 / 400)
    assert speedup.over_texts[1:] == (pytest.approx(1), pytest.approx(3))
    assert speedup.median_text == pytest.approx(2)
    speedup = summary_of((10, 5), (1000, 500), (90, 45)).speedup
    assert speedup.over_texts.low == speedup.over_texts.high == pytest.approx(2)


def test_figures_are_medians_over_repeats_and_quantiles_over_texts():
    """A slow repeat does not count; outputs are identical in two of three repeats."""
    records = timings()
    for repeat, (slow, tokens) in enumerate(((1, 8), (1, 8), (50, 4))):
        records.append(generation("alone", 0, 80 * slow, tokens=8, repeat=repeat))
        records.append(generation("speculative", 0, 40 * slow, tokens=tokens, repeat=repeat))
    summary = summarized(records)
    assert summary.speedup.over_texts.value == 2 and summary.seconds["alone"].p50 == 80
    assert (summary.texts, summary.repeats, summary.identical) == (1, 3, 2)
    quantiles = summary_of(*((seconds, 1) for seconds in range(11))).seconds["alone"]
    assert dataclasses.astuple(quantiles) == pytest.approx((1, 5, 9, 9.9))


def test_time_to_the_first_token_and_per_token_after_it():
    """8 tokens, alone by 8 calls of 10 s after 5 s; speculative by 4 calls of 20 s after 7 s."""
    latency = summary_of((85, 87)).latency
    assert dataclasses.astuple(latency["alone"]) == (15, pytest.approx(10))
    assert dataclasses.astuple(latency["speculative"]) == (27, pytest.approx(10))
    assert summary_of((85, 87), of=None).latency.keys() == {"alone"}


def test_other_texts_are_compared_per_token():
    """Sampling freely: twice the tokens in the same time is twice as fast."""
    records = [
        *timings(),
        generation("alone", 0, 80, tokens=8),
        generation("speculative", 0, 80, tokens=16, accepted=(3, 3, 3, 3)),
    ]
    summary = summarized(records)
    assert summary.speedup.over_texts.value == 1 and summary.speedup.per_token == 2
    assert summary.identical == 0
    summary = summarized(records, same_output=False)
    assert summary.identical is None
    assert not any("identical" in line for line in printed.lines(summary))


@pytest.mark.parametrize("tokens, calls", [(8, 2), (16, 4)])
def test_a_forecast_is_made_of_other_texts_and_the_parts(tokens, calls):
    """2 tokens a call are expected by other texts, and these texts had 4.

    It is of the baseline's 8 tokens, and compared per token where sampling freely wrote 16.
    """
    iteration = DRAFT + VERIFY
    records = [
        *timings(),
        *map(elsewhere, range(3)),
        generation("alone", 0, 5 + 8 * 10, tokens=8),
        generation("speculative", 0, 7 + calls * iteration, tokens=tokens, accepted=[3] * calls),
    ]
    summary = summarized(records, same_output=tokens == 8)
    assert summary.texts == 1 and summary.tau == 4
    forecast = summary.forecast
    assert (forecast.split, forecast.texts, forecast.tau) == ("validation", 3, 2)
    assert forecast.alpha == pytest.approx(2 / (2 + 2))
    assert forecast.whole == pytest.approx((5 + 8 * 10) / (7 + 8 / 2 * iteration))
    assert forecast.decoding == pytest.approx(2 * 10 / iteration)
    assert forecast.measured_decoding == pytest.approx(10 / (iteration / 4))
    assert forecast.measured_over_decoding == pytest.approx(2)
    speedup = summary.speedup
    assert speedup.per_token == pytest.approx(tokens / 8 * speedup.over_texts.value)
    assert forecast.measured_over_whole == pytest.approx(speedup.per_token / forecast.whole)
    assert summarized(records, of=None).forecast is None
    assert summary_of((85, 83)).forecast is None


def test_no_negative_time_is_printed():
    """A busy machine: the parts took longer than the texts that are made of them."""
    summary = summary_of((4, 6), (4, 6))
    assert summary.prediction.rest < 0 and summary.latency["alone"].per_token is None
    records = [*timings(), elsewhere(0), generation("alone", 0, 4, tokens=8)]
    summary = summarized([*records, generation("speculative", 0, 6, tokens=8, accepted=(3, 3))])
    assert not re.search(r"-\d", "\n".join(printed.lines(summary)))


@pytest.mark.parametrize("drafter, draft", [(NO_MODEL, 0), (TWO_MODELS, DRAFT + 0.5 + 2 * 0.25)])
def test_all_models_of_a_drafter_count(drafter, draft):
    """Without a model a draft takes no time."""
    prediction = summary_of((85, 7 + 4 * (draft + VERIFY)), of=plan(drafter)).prediction
    assert (prediction.gamma, prediction.draft, prediction.verify) == (GAMMA, draft, VERIFY)
    assert prediction.cost_ratio == pytest.approx(draft / GAMMA / 10)
    assert prediction.measured_over_predicted == pytest.approx(1)
    long = theory.speedup(4 / 7, GAMMA, draft / GAMMA / 10, 1.5)
    assert prediction.long_generation == pytest.approx(long)
    assert (prediction.parts == (("target", 4, 1),)) == (draft == 0)


TURN = "turn of 1 x draft 2, 2 x draft 1, 1 x target 4"


def test_a_draft_takes_what_it_takes_in_a_turn():
    """Twice as long, with the target's call behind each; a turn that seems faster is noise."""
    told = [
        generation("alone", 0, 5 + 8 * 10, tokens=8),
        generation("speculative", 0, 7 + 2 * (2 * DRAFT + VERIFY), tokens=8, accepted=(3, 3)),
        elsewhere(0),
    ]
    for times, expected in ((2, 2), (0.5, 1)):
        turn = Timing(key_of(TURN), 0, 0, 8 * (times * DRAFT + VERIFY), 8)
        summary = summarized([*timings(), turn, *told])
        prediction, forecast = summary.prediction, summary.forecast
        assert prediction.by_turns == pytest.approx(expected)
        assert prediction.draft == pytest.approx(expected * DRAFT) and prediction.verify == VERIFY
        assert prediction.cost_ratio == pytest.approx(expected * DRAFT / GAMMA / 10)
        assert forecast.decoding == pytest.approx(2 * 10 / (expected * DRAFT + VERIFY))
        shown = any(line.startswith("  alternating") for line in printed.lines(summary))
        assert shown == (times > 1)
    assert summarized([*timings(), *told]).prediction.by_turns == 1


def test_where_lengths_vary_the_parts_are_those_of_the_lengths_that_were_drafted():
    """A call with 1 draft token and one with 3; of other texts two with 1."""
    short, long = 2.0 + 11, DRAFT + 15
    drawn = generation("speculative", 0, 7 + short + long, tokens=8, accepted=(1, 3))
    records = [
        *timings(),
        generation("alone", 0, 85, tokens=8),
        dataclasses.replace(drawn, drafted=(1, 3)),
        elsewhere(0, drafted=(1, 1), accepted=(1, 1)),
    ]
    summary = summarized(records, plan(schedule=Cycle((1, 3))))
    prediction, forecast = summary.prediction, summary.forecast
    assert prediction.gamma is prediction.alpha_from_tau is prediction.long_generation is None
    calls = {("target", 2): 0.5, ("target", 4): 0.5, ("draft", 2): 1, ("draft", 1): 1}
    assert {part[:2]: part.calls for part in prediction.parts} == calls
    assert (prediction.draft, prediction.verify) == (2.0 + 1.0, (11 + 15) / 2)
    assert prediction.cost_ratio == pytest.approx(3 / 2 / 10)
    assert prediction.measured_over_predicted == pytest.approx(1)
    assert prediction.rest == pytest.approx(0, abs=1e-9)  # float64 seconds, below 100
    assert forecast.decoding == pytest.approx(2 * 10 / short)
    assert forecast.whole == pytest.approx(85 / (7 + 4 * short))
    table = list(printed.lines(summary))
    assert not any(line.startswith("  if independent") for line in table)
    (v,) = (line for line in table if line.startswith("v "))
    assert v.endswith("a target call, in target steps")


class Untold(Skipping):
    """A drafter that runs a model and does not say how often."""

    def parts(self, length, source=None):
        return ()


def test_a_model_whose_calls_nobody_tells_is_not_predicted():
    assert parts_of(PLAN) and parts_of(plan(TWO_MODELS)) and parts_of(plan(NO_MODEL))
    assert parts_of(plan(Skipping(ONE_MODEL))) and parts_of(plan(Untold(ONE_MODEL))) is None


def test_what_is_not_exact_says_so():
    inexact = plan(verifier=SyntheticAcceptance(0.5), stop_ids=())
    summary = summary_of((85, 83), of=inexact, same_output=inexact.same_output)
    assert not summary.exact and summary.identical is None
    assert next(printed.lines(summary)).startswith("NOT EXACT")
    assert not any("NOT EXACT" in line for line in printed.lines(summary_of((85, 83))))


# The protocol.

SECONDS = {"alone": 4.0, "speculative": 2.0, "first": 1.0, "second": 3.0}


class Fakes:
    """A workload of programs that advance a clock and write down how they were called."""

    def __init__(self):
        self.now = 0.0
        self.calls: list[tuple] = []

    def clock(self) -> float:
        return self.now

    def program(self, name):
        def run(params, *arguments):
            self.now += SECONDS[name]
            self.calls.append((name, *arguments))
            return _output() if name in ("alone", "speculative") else f"from {name}"

        return Compiled(run)

    def workload(self) -> Workload:
        parts = {
            "first": TimedPart(self.program("first"), None, 1),
            "second": TimedPart(self.program("second"), "first", 6),
        }
        modes = {mode: self.program(mode) for mode in ("alone", "speculative")}
        return Workload(plan(NO_MODEL), PLAN.alone(), modes, parts)

    def by_text(self, texts, repeats, workload=None):
        inputs = {text: np.full([1, 2], text + 1, np.int32) for text in range(texts)}
        return measure_by_text(
            workload or self.workload(),
            {"alone": (), "target": ()},
            inputs,
            seed=0,
            repeats=repeats,
            clock=self.clock,
        )

    def measure(self, *arguments, **options):
        return list(itertools.chain.from_iterable(self.by_text(*arguments, **options)))


class Compiled(NamedTuple):
    """In place of a `Program`."""

    run: Callable

    def compile(self, *arguments):
        return self.run

    warmed = compile

    def __call__(self, *arguments):
        return self.run(*arguments)


def _output() -> DecodeOutput:
    """One text: [4, 5, 1], the first two tokens by one call."""
    trace = Trace(
        proposed=jnp.zeros([1, 4, 2], jnp.int32),
        drafted=jnp.array([[2, 2, 0, 0]]),
        accepted=jnp.array([[1, 0, 0, 0]]),
        calls=jnp.array([2]),
        ended_in_draft=jnp.array([False]),
        steps=jnp.array(2),
        broken_drafts=jnp.zeros([1], int),
        failed=jnp.zeros([1], bool),
    )
    return DecodeOutput(jnp.array([[4, 5, 1, 0]]), jnp.array([3]), jnp.zeros([1, 4]), trace)


def test_each_record_says_what_was_measured():
    records = Fakes().measure(texts=5, repeats=2)
    generations = [record for record in records if isinstance(record, Generation)]
    counts = collections.Counter((one.mode, one.text, one.repeat) for one in generations)
    assert set(counts) == set(
        itertools.product(SECONDS.keys() - {"first", "second"}, range(5), (0, 1))
    )
    assert set(counts.values()) == {1}
    for one in generations:
        assert one.seconds == SECONDS[one.mode]
        assert (one.calls, one.tokens, one.broken_drafts) == (2, [4, 5, 1], 0)
        assert (one.drafted, one.accepted) == ([2, 2], [1, 0])
        assert one.sources == one.depths == []
    parts = [record for record in records if isinstance(record, Timing)]
    assert [(part.part, part.text, part.repeat) for part in parts] == [
        (name, text, repeat) for repeat in (0, 1) for text in (0, 4) for name in ("first", "second")
    ]
    assert {(part.part, part.seconds, part.steps) for part in parts} == {
        ("first", 1.0, 1),
        ("second", 3.0, 6),
    }


def test_the_order_is_swapped_from_text_to_text_and_from_repeat_to_repeat():
    records = Fakes().measure(texts=4, repeats=2)
    first = [one for one in records if isinstance(one, Generation)][::2]
    order = ["alone", "speculative"]
    assert [one.mode for one in first] == 2 * order + 2 * order[::-1]


def test_nothing_of_the_next_text_is_measured_before_its_turn():
    fakes = Fakes()
    units = fakes.by_text(texts=2, repeats=1)
    for text in (0, 1):
        assert {record.text for record in next(units)} == {text}
        seen = {int(call[2][0, 0]) - 1 for call in fakes.calls if call[0] == "alone"}
        assert seen == set(range(text + 1))


def test_warm_ups_come_first_and_parts_get_what_their_source_gave():
    fakes = Fakes()
    fakes.measure(texts=1, repeats=1)
    names = [name for name, *_ in fakes.calls]
    warm_up = ["alone", "speculative", "first", "second"]
    assert names == [*3 * warm_up, "first", "second", "alone", "speculative"]
    for name, given in (call for call in fakes.calls if call[0] in ("first", "second")):
        assert name == "first" or given == "from first"


def test_repeats_are_other_samples_and_both_modes_get_the_same():
    fakes = Fakes()
    fakes.measure(texts=2, repeats=2)
    keys = [
        (int(call[2][0, 0]) - 1, jax.random.key_data(call[1]).tolist())
        for call in fakes.calls
        if call[0] in ("alone", "speculative")
    ][6:]
    expected = [
        (text, jax.random.key_data(row_keys(0, np.array([text]), repeat)).tolist())
        for repeat in (0, 1)
        for text in (0, 1)
        for _ in range(2)
    ]
    assert keys == expected
    assert len({str(key) for key in keys}) == 4


# Any plan, on models that are tables.

LITTLE = 2**20  # bytes of memory to read, where it does not matter how fast that is
PLANS = {
    "no model": plan(NO_MODEL),
    "two models": plan(TWO_MODELS),
    "stops": plan(schedule=StopAfterUnlikely(GAMMA)),
    "buckets": plan(schedule=Cycle((1, 3))),
}


@pytest.fixture(scope="module")
def little():
    """Memory of a size that is soon read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.measure.parts.READ_BYTES", LITTLE)
        yield


@pytest.mark.ci
@pytest.mark.parametrize(
    "of",
    [
        pytest.param(of, id=name, marks=[pytest.mark.slow] * (name != "two models"))
        for name, of in PLANS.items()
    ],
)
def test_every_plan_is_predicted(of, little):
    workload = Workload.of(of, of.alone())
    models = {"alone": of.target, **of.models()}
    trees = {role: model.init(jax.random.key(7)) for role, model in models.items()}
    texts = {text: np.full([1, 2], 2 + text, np.int32) for text in range(2)}
    measurement = Measurement(workload, trees, texts, File(None, ""), seed=0, repeats=1)
    assert measurement.remaining == 4
    records = list(itertools.chain.from_iterable(measurement.by_text()))
    summary = measurement.conclude({})
    timed = {record.part for record in records if isinstance(record, Timing)}
    calls = {Calls(role, width) for role, width, _ in of.parts()}
    turns = {key for key in timed if isinstance(key, Turn)}
    assert timed == {*PREFILLS, *calls, *turns} and len(turns) == (len(of.models()) > 1)
    for turn in turns:
        assert {Calls(role, width) for role, width, _ in turn.parts} <= calls
    prediction = summary.prediction
    assert {part.role for part in prediction.parts} == of.models().keys()
    assert prediction.gamma == of.gamma and summary.identical == 2
    assert (prediction.draft > 0) == (len(of.models()) > 1) and prediction.verify > 0
    assert prediction.these_texts > 0 and list(printed.lines(summary))


def test_a_part_for_each_length_that_a_draft_may_have():
    """Of a drafter that proposes all tokens by one call."""

    class OneCall(Autoregressive):
        def parts(self, length, source=None):
            return (Part("draft", length, 1),) if length else ()

    stops = plan(OneCall(TARGET, Greedy()), schedule=StopAfterUnlikely(GAMMA))
    names = ("draft 1", "draft 2", "draft 3", "target 4", "turn of 1 x draft 3, 1 x target 4")
    expected = {*PREFILLS, *map(key_of, names)}
    assert Workload.of(stops, stops.alone()).parts.keys() == expected


@pytest.mark.parametrize("of", [PLAN, plan(TWO_MODELS)], ids=["one model", "two models"])
def test_a_turn_feeds_what_each_call_says_to_the_next(of):
    """Against the calls one by one: each kind a position further every time, and all of them where
    they began, one position further in each turn."""
    turn, steps, models = turn_of(of), 3, of.models()
    trees = {role: model.init(jax.random.key(7)) for role, model in models.items()}
    begun = prefill(trees, np.array([[2, 3]], np.int32), models=models, slots=of.capacity, views={})
    told = turns(of, turn, steps)(trees, begun)
    tokens, widest, expected = np.zeros([1, 4], np.int32), 4, []
    caches = {role: cache for role, (_, cache) in begun.items()}
    decoded = jax.jit(lambda model, *given: model.decode(*given), static_argnums=0)
    for place in range(steps):
        for role, width, times in turn.parts:
            for _ in range(int(times)):
                fed = jnp.asarray(tokens[:, :width])
                output, after = decoded(models[role], trees[role], fed, caches[role])
                best = np.argmax(output.logits, axis=-1)
                tokens = np.concatenate([best, tokens[:, : widest - width]], axis=1)
                caches[role] = after.rewind(caches[role].length + 1)
        caches = {role: cache.rewind(jnp.array([place + 1])) for role, cache in caches.items()}
        expected.append(int(tokens[0, 0]))
    assert told.tolist() == [expected]
    assert [part.calls for part in turn.parts if part.role != "target"]
    assert turn.parts[-1].role == "target"


PREFILLS = (MEMORY, MEMORY_READ, PREFILL_ALONE, STEP, PREFILL)


# The real thing.

LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf", "six\tsechs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's data: two TSVs, a gin file, and two models of bytes."""
    folder = tmp_path_factory.mktemp("run")
    texts = {"test": LINES, "other": ["seven\tsieben", "eight\tacht"]}
    bytes_run(folder, "bench", texts, "BATCH_SIZE = 4\n")
    return folder


@pytest.fixture(scope="module")
def specdec_bench(folder, cache):
    """Runs the command; returns its exit code."""
    given = [f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}"]
    return lambda *flags: cli.main(["bench", *given, *flags])


@pytest.fixture(scope="module", autouse=True)
def two_layouts(folder):
    """A device that likes one layout for one token, and another for several."""
    file = folder / "device.json"
    file.write_text(json.dumps(device_of({1: "out_in", 2: "in_out"}).as_json()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(device.SETTING, str(file))
        patch.setattr(benchmarking, "load_average", lambda: 0.1)
        yield


class Run(NamedTuple):
    path: Path
    code: int
    out: str
    workload: Workload
    trees: dict


@pytest.fixture(scope="module")
def run(folder, specdec_bench, little):
    """One run of the command, and what it measured with."""
    path, kept, measure = folder / "out.jsonl", {}, measure_by_text

    def spy(workload, trees, *args, **kwargs):
        kept.update(workload=workload, trees=trees)
        return measure(workload, trees, *args, **kwargs)

    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr("specdec.measure.measurement.measure_by_text", spy)
        code = specdec_bench(f"--output_file={path}", "--limit=5", "--repeats=2")
    return Run(path, code, out.getvalue(), **kept)


def test_json_lines(run):
    assert run.code == 0
    check_lines("bench", run.path)
    records = [json.loads(line) for line in run.path.read_text().splitlines()]
    generations = [record for record in records if "mode" in record]
    assert len(generations) == 5 * 2 * 2
    assert len(records) == 5 * 2 * 2 + 2 * 2 * 9  # parts at texts 0 and 4, in both repeats
    for line in generations:
        calls = line["calls"]
        assert line["seconds"] > 0 and len(line["drafted"]) == len(line["accepted"]) == calls
        assert 1 <= calls <= len(line["tokens"]) <= 8
    again = map(benchmark_record, run.path.read_text().splitlines())
    read = T5Target(tiny_t5(261, 11, head_dim=4)).read_by_decode(run.trees["alone"])
    step_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(read))
    assert step_bytes < sum(leaf.nbytes for leaf in jax.tree.leaves(run.trees["alone"]))
    summary = summarized(again, run.workload.plan, step_bytes=step_bytes)
    answer, table = run.out.partition("kernels, ")[0].split("\n\n", 1)
    assert table == "\n".join(printed.lines(summary)) + "\n"
    sentence, machine = answer.split("\n")[:2]
    assert re.match(
        r"\d+\.\d\d times as fast as the target alone \(\d.* to \d.*\), 10 of 10 texts identical, "
        r"Autoregressive, 2 tokens per draft, on \d+ cores? of \w",
        sentence,
    )
    assert machine.startswith("machine") and "the same work took" in machine


def test_a_line_has_sources_where_the_drafter_has(tmp_path):
    file = File(str(tmp_path / "lines"), "# format of bench = 1\n")
    of_one = generation("alone", 0, 1.0, tokens=2, accepted=[1])
    of_two = dataclasses.replace(of_one, mode="speculative", sources=[1])
    for one in (of_one, of_two):
        file.write(one)
    lines = (tmp_path / "lines").read_text().splitlines()
    assert ["sources" in json.loads(line) for line in lines] == [False, True]
    check_lines("bench", tmp_path / "lines")
    again = File(str(tmp_path / "lines"), "# format of bench = 1\n")
    assert [list(one.sources) for one in again.records(None)] == [[], [1]]


def test_what_was_interrupted_goes_on(run, folder, specdec_bench, capsys, monkeypatch):
    """After the last text with both modes; the same figures come out of old and new records."""
    path = folder / "torn.jsonl"
    lines = run.path.read_text().splitlines(keepends=True)
    texts = [json.loads(line)["text"] for line in lines]
    first_of_text_2 = texts.index(2)
    path.write_text("".join(lines[: first_of_text_2 + 1]) + lines[first_of_text_2 + 1][:20])
    Path(f"{path}.gin").write_text(Path(f"{run.path}.gin").read_text())
    skipped = []

    def measure(*args, skip, **kwargs):
        skipped.append(set(skip))
        return iter([map(benchmark_record, lines[first_of_text_2:])])

    monkeypatch.setattr("specdec.measure.measurement.measure_by_text", measure)
    monkeypatch.setattr(Workload, "compile", lambda *_: {})
    monkeypatch.setattr(Workload, "costs", lambda *_: {})
    flags = [f"--output_file={path}", "--limit=5", "--repeats=2"]
    assert specdec_bench(*flags) == 0
    assert skipped == [{(0, 0), (0, 1)}]
    assert path.read_text() == run.path.read_text()
    assert capsys.readouterr().out == run.out
    assert specdec_bench(*flags, "--gin.GAMMA=1") == 2
    assert "was begun with GAMMA = 2, and now it is 1" in capsys.readouterr().err
    here = benchmarking.hardware()
    monkeypatch.setattr(benchmarking, "hardware", lambda: here | {"cpu": "another"})
    assert specdec_bench(*flags) == 2
    line = f"was begun with machine's cpu = {here['cpu']}, and now it is another; take"
    assert line in capsys.readouterr().err
    assert path.read_text() == run.path.read_text()


def benchmark_record(line):
    return record(json.loads(line))


@pytest.mark.slow
def test_a_forecast_by_another_split(folder, specdec_bench, little, capsys):
    """Its texts are decoded once, also if the measurement is interrupted and goes on."""
    path = folder / "forecast.jsonl"
    flags = ["--forecast_split=other", f"--output_file={path}", "--limit=3", "--repeats=1"]
    assert specdec_bench(*flags) == 0
    check_lines("bench", path)
    out = capsys.readouterr().out
    assert "\nforecast" in out and "by 2 texts of other" in out
    report = json.loads(Path(f"{path}.summary.json").read_text())
    assert report["forecast"]["split"] == "other" and report["texts"] == 3
    lines = path.read_text().splitlines(keepends=True)
    elsewhere = [line for line in lines if "split" in json.loads(line)]
    assert [json.loads(line)["text"] for line in elsewhere] == [0, 1]
    path.write_text("".join(lines[:-3]))
    assert specdec_bench(*flags) == 0
    again = path.read_text().splitlines(keepends=True)
    assert [line for line in again if "split" in json.loads(line)] == elsewhere
    assert specdec_bench("--forecast_split=nowhere") == 2
    assert "'nowhere'" in capsys.readouterr().err


def test_the_target_alone_is_kept_as_is_best_for_it(run):
    """One token at a time it reads its kernels [out, in], and verifying [in, out]: one function."""
    wide, alone = (
        run.trees[role]["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
        for role in ("target", "alone")
    )
    assert np.array_equal(wide, alone.T) and not np.array_equal(wide, alone)
    report = json.loads(Path(f"{run.path}.summary.json").read_text())
    assert report["run"]["layouts"]["alone"] == "out_in"
    assert report["run"]["layouts"]["target"] == "in_out"
    assert report["run"]["products"]["large"]["out_in"] == {"1": 1.0, "2": 4.0}
    assert re.search("^kernels, alone +out_in$", run.out, re.MULTILINE)
    machine = "# machine's layouts = {'alone': 'out_in', 'target': 'in_out'"
    assert machine in Path(f"{run.path}.gin").read_text()


@pytest.mark.parametrize(
    "setting, says",
    [
        ("SEED=3", "SEED = 3, and the first variant 0"),
        ("SPLIT='test2'", "SPLIT = 'test2', and the first variant 'test'"),
        ("MIN_LENGTH=2", "sampling = "),
        ("INT8=('draft', 'target')", "target.weights = 'int8', and the first variant 'stored'"),
    ],
)
def test_variants_have_one_baseline(specdec_bench, capsys, setting, says):
    assert specdec_bench("--variant=GAMMA=1", f"--variant={setting}") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"--variant={setting} has {says}" in line
    assert line.endswith("; only drafters, draft lengths and verifiers may vary")


@pytest.mark.ci
def test_variants_may_differ_in_all_that_drafts_or_verifies(folder, monkeypatch):
    """In eight bits of the draft, in exactness, in the drafter's mesh, in a schedule's table."""
    arrays = {"mean": np.zeros(12), "scale": np.ones(12), "hidden": np.zeros((12, 4))}
    arrays |= {"hidden_bias": np.zeros(4), "out": np.zeros(4), "out_bias": np.zeros([])}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    for name in ("one", "two"):
        tables.save(folder / name, "classifier", arrays, tasks.Bytes().load())
    disco = "schedules/disco.gin;DRAFT_LENGTHS=(1, 2);SCHEDULE_TABLE_PATH="
    names = [
        "GAMMA=1",
        "INT8=('draft',)",
        "verifiers/lenient.gin;LOSSY=True",
        f"{disco}'{folder / 'one'}'",
        f"{disco}'{folder / 'two'}'",
        "partitioning.Partitioner.draft_logical_axis_rules=()",
    ]
    monkeypatch.setattr(benchmarking, "_workload", lambda run: None)
    flags = [f"--gin_file={folder / 'run.gin'}", *(f"--variant={one}" for one in names)]
    args = cli.overview().parse_args(settings.joined(["bench", *flags]))
    with contextlib.ExitStack() as args.contexts:
        told = ((one, None) for one in variants.variants(args, lines="bench"))
        found = benchmarking.Benchmark.of(told).timed
    plans = [one.run.plan for one in found]
    assert [plan.models()["draft"].weights for plan in plans[:3]] == ["stored", "int8", "stored"]
    assert [plan.exact for plan in plans] == [True, True, False, True, True, True]
    assert found[3].run.paths() != found[4].run.paths()


def test_two_variants_are_not_written_to_one_file(specdec_bench, tmp_path, capsys):
    both = "--variant=BUCKETS=(1,2)", "--variant=BUCKETS=[1,2]"
    assert specdec_bench(*both, f"--output_file={tmp_path / 'out.jsonl'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    path = tmp_path / "out_BUCKETS=-1-2-.jsonl"
    assert f"{both[0]} and {both[1]} would both be written to {path}; leave one out" in line
    assert not list(tmp_path.iterdir())


def test_the_report(run):
    report = json.loads(Path(f"{run.path}.summary.json").read_text())
    assert report["identical"] == 5 * 2  # greedy
    assert report["run"]["gamma"] == 2 and report["run"]["limit"] == 5
    assert report["run"]["dtype"] == {"target": "float32", "draft": "float32"}
    for role in ("target", "draft"):
        expected = sum(leaf.size for leaf in jax.tree.leaves(run.trees[role]))
        assert report["run"]["parameters"][role] == expected
    workload, costs = run.workload, report["run"]["costs"]
    parts = map(name_of, workload.parts)
    assert report["compile_seconds"].keys() == {*workload.generations, *parts}
    assert costs["target 3"]["flops"] > 2 * costs["alone 1"]["flops"] > 0
    assert costs["memory_read"]["bytes"] >= LITTLE and workload.parts["memory_read"].steps == 1
    assert report["environment"] == json.loads(json.dumps(environment()))
    assert report["prediction"]["these_texts"] > 0 and report["exact"] is True
    parts = [["target", 3, 1], ["draft", 2, 1], ["draft", 1, 1]]
    assert report["prediction"]["parts"] == parts
    assert "GAMMA = 2" in Path(f"{run.path}.gin").read_text()


def test_scans_of_every_width_decode_greedily(run):
    """So they make the calls they stand for, at the positions they stand for."""
    workload, trees = run.workload, run.trees
    inputs = np.zeros([1, 16], np.int32)
    inputs[0, :4] = [113, 110, 103, 1]
    params = workload.params(trees)["alone"]
    alone = workload.generations["alone"](params, row_keys(0, np.array([0])), inputs)
    length = int(alone.length[0])
    assert length > 4 and len(set(alone.tokens[0].tolist())) > 1
    given = {None: inputs}
    for name, part in workload.parts.items():
        given[name] = part.program(trees, given[part.source])
    for key in (STEP, Calls("target", 3)):
        assert given[key].shape == (1, 8)
        assert given[key][0, :length].tolist() == alone.tokens[0, :length].tolist()
    assert given["draft", 2].tolist() == given["draft", 1].tolist()
    assert given["draft", 1].tolist() != given[STEP].tolist()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--repeats=0",), "--repeats is 0"),
        (("--limit=0",), "limit is 0"),
        (("--output_file=/nowhere/out",), "cannot be written"),
        (("--gin.DRAFTER=None",), "the run has no drafter"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(specdec_bench, capsys, monkeypatch, flags, message):
    def no_work(*_):
        raise AssertionError("compiled before the flags were looked at")

    monkeypatch.setattr(Workload, "compile", no_work)
    monkeypatch.setattr(Placement, "read", no_work)
    assert specdec_bench(*flags) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("specdec: ")]
    assert message in line and captured.out == ""
