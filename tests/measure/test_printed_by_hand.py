"""The tables of `specdec bench` and `forecast`, of figures made by hand: pytest tests/measure

The file printed.txt has what they say. No two figures are alike.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from support import Cycle

from specdec.common.statistics import Estimate
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.drafters import Autoregressive
from specdec.measure import printed
from specdec.measure.estimator import Spread
from specdec.measure.file import Generation, Timing
from specdec.measure.summary import (
    Baseline,
    BenchmarkPrediction,
    BenchmarkSummary,
    GreedyFigures,
    Latency,
    PredictedByOthers,
    Quantiles,
    Speedup,
)
from specdec.plan import Plan
from specdec.predict import predicted_speedup
from specdec.predict.predicted_speedup import PredictedSpeedup
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Part
from specdec.verifiers import GreedyMatch

PREDICTION = BenchmarkPrediction(
    gamma=3,
    prefill=0.0611,
    cost_ratio=0.171,
    verify_cost=1.251,
    alpha_from_tau=0.612,
    long_generation=1.731,
    these_texts=1.651,
    measured_over_predicted=0.971,
    draft=0.0051,
    verify=0.0125,
    rest=0.0013,
    parts=(Part("draft", 2, 1), Part("draft", 1, 2), Part("target", 4, 1)),
    by_turns=1.181,
)
TIMES = {
    "alone": Quantiles(0.101, 0.202, 0.303, 0.404),
    "speculative": Quantiles(0.051, 0.112, 0.163, 0.214),
}
SUMMARY = BenchmarkSummary(
    texts=5,
    repeats=3,
    seconds=TIMES,
    latency={"alone": Latency(0.021, 0.0102), "speculative": Latency(0.032, None)},
    speedup=Speedup(Estimate(1.611, 1.512, 1.713), 1.621, 1.632),
    identical=14,
    tau=2.351,
    alpha=0.701,
    baseline=Baseline(0.0411, 0.0101, 1.023, 1.134, 8.1e9, 0.00404),
    prediction=PREDICTION,
    forecast=PredictedByOthers("validation", 9, 2.412, 0.681, 1.871, 1.751, 1.912, 1.022, 0.963),
    conditional=(0.8125, 0.75, None),
    joint=(0.8125, 0.61, 0.333),
    depth=7.251,
    broken_drafts=2,
)
BEAMS = BenchmarkSummary(
    texts=4,
    repeats=2,
    seconds={**TIMES, "greedy": Quantiles(0.011, 0.012, 0.013, 0.014)},
    latency={},
    speedup=Speedup(Estimate(0.911, 0.812, 0.993), 1.2, 0.922),
    identical=8,
    tau=1.881,
    alpha=0.501,
    baseline=Baseline(0.0412, 0.0202, 1.033, 1.144, 8.2e9, None),
    prediction=None,
    conditional=(0.5,),
    joint=(0.25,),
    beams=4,
    greedy=GreedyFigures(Speedup(Estimate(3.111, 2.912, 3.413), 3.3, 3.4), 2.911),
)
INEXACT = BenchmarkSummary(
    **{
        **vars(SUMMARY),
        "exact": False,
        "prediction": None,
        "forecast": None,
        "identical": None,
        "alpha": None,
        "conditional": (),
        "broken_drafts": 0,
        "baseline": Baseline(0.041, 0.01, -0.5, 1.1, 8e9, None),
    }
)


def forecasts() -> list[PredictedSpeedup]:
    """Drafts have no token, two tokens, or lengths that a schedule chooses."""
    none = PredictedSpeedup(0, 4, 40, 40.0, Estimate(1.0, 1.0, 1.0), None, None, None, None, [])
    tokens, speedup = Estimate(2.11, 2.02, 2.23), Estimate(1.31, 1.22, 1.43)
    two = PredictedSpeedup(2, 4, 40, 19.5, tokens, speedup, 2.31, 1.41, 1.53, [0.25, 0.625], 6.251)
    faster = Estimate(1.37, 1.28, 1.46)
    own = PredictedSpeedup(
        None, 4, 40, 17.0, Estimate(2.35, 2.2, 2.5), faster, None, None, 1.61, [0.2]
    )
    return [none, two, own]


def shown() -> str:
    """Returns the tables, with an empty line between two."""
    slow = dataclasses.replace(forecasts()[1], speedup=Estimate(0.9, 0.8, 1.0))
    tables = [*map(printed.lines, (SUMMARY, BEAMS, INEXACT))]
    tables += [predicted_speedup.lines(forecasts()), predicted_speedup.lines([slow])]
    return "\n".join("".join(f"{line.rstrip(' ')}\n" for line in one) for one in tables)


def test_each_figure_has_its_line():
    expected = Path(__file__).with_name("printed.txt").read_text(encoding="utf-8")
    assert shown() == expected


TARGET = TableTarget(6)
PLAN = Plan(
    TARGET, Autoregressive(TARGET, Greedy()), GreedyMatch(), Fixed(3), Greedy(), max_length=8
)
MACHINE: Any = {"backend": "cpu", "cores": 2, "cpu": "AMD EPYC", "features": ["avx2"]}


SAME, LENGTHS = "14 of 15 texts identical", "3 tokens per draft"
ON = "2 cores of AMD EPYC (avx2)"


@pytest.mark.parametrize(
    "summary, schedule, machine, says",
    [
        (SUMMARY, Fixed(3), MACHINE, (SAME, LENGTHS, ON)),
        (
            dataclasses.replace(SUMMARY, identical=None),
            *(Fixed(3), MACHINE, ("outputs of the same distribution", LENGTHS, ON)),
        ),
        (INEXACT, Fixed(3), MACHINE, ("outputs NOT EXACT", LENGTHS, ON)),
        (
            *(SUMMARY, Fixed(1), MACHINE | {"cores": 1}),
            (SAME, "1 token per draft", "1 core of AMD EPYC (avx2)"),
        ),
        (
            *(SUMMARY, Cycle((1, 3)), {"backend": "tpu", "devices": 1, "device": "TPU v4"}),
            (SAME, "up to 3 tokens per draft", "1 x TPU v4"),
        ),
    ],
)
def test_the_sentence_of_a_benchmark(summary, schedule, machine, says):
    plan = dataclasses.replace(PLAN, schedule=schedule)
    texts, lengths, device = says
    assert printed.sentence(summary, plan, machine) == (
        f"1.61 times as fast as the target alone (1.51 to 1.71), {texts}, Autoregressive, "
        f"{lengths}, on {device}"
    )


@pytest.mark.parametrize(
    "high, shown, less", [(0.993, "0.99", "slower"), (1.0, "1.00", "no faster")]
)
def test_the_sentence_of_a_search(high, shown, less):
    plan = BeamPlan(TARGET, 4, T5XBeams(), 8, DraftBeams(TARGET, 6, 2))
    over_texts = BEAMS.speedup.over_texts._replace(high=high)
    speedup = dataclasses.replace(BEAMS.speedup, over_texts=over_texts)
    summary = dataclasses.replace(BEAMS, speedup=speedup)
    assert printed.sentence(summary, plan, MACHINE) == (
        f"0.91 times as fast as plain beams (0.81 to {shown}), so {less} than without a draft, "
        "8 of 8 texts the same beams, 4 beams, drafts of 6 beams and 2 steps, "
        "on 2 cores of AMD EPYC (avx2)"
    )


@pytest.mark.parametrize(
    "load, cores, high, busy, meaning",
    [
        (1.0, 2, 1.2, False, None),
        (1.01, 2, 1.2, True, "runs alternate, so the interval of the speed-up holds; "),
        (1.01, 4, 1.2, False, None),
        (None, 2, 1.25, False, None),
        (None, 2, 1.26, True, "runs alternate, so the interval of the speed-up holds; "),
        (None, 2, 2.0, True, "runs alternate, so the interval of the speed-up holds; "),
        (None, 2, 2.01, True, "trust no figure here, the speed-up included; "),
    ],
)
def test_from_when_on_a_machine_is_busy(load, cores, high, busy, meaning):
    """A load above half of the cores, or times that differ by more than a quarter."""
    first, *rest = printed.trust(load, Spread(1.0, high, 9), cores)
    assert first.startswith("machine is busy " if busy else "machine  ")
    known = "" if load is None else f"load average {load:.1f} on {cores} cores before, "
    assert first.removeprefix("machine is busy").removeprefix("machine").strip() == (
        f"{known}the same work took 1.00 to {high:.2f} times its median (middle 80 % of 9 timings)"
    )
    assert [line[:20].strip() for line in rest] == [""] * (meaning is not None)
    assert all(line[20:].startswith(meaning) for line in rest)


def generation(mode: str, text: int, seconds: float, repeat: int = 0, calls: int = 2) -> Any:
    made = {"tokens": [2] * 4, "drafted": [1] * calls, "accepted": [1] * calls}
    return Generation(**made, mode=mode, text=text, repeat=repeat, seconds=seconds)


def test_the_spread_is_of_work_that_is_the_same():
    """A part in steps of 1 and 2 s, and a text in 10 and 30 s; a third text took other calls."""
    parts = [Timing("prefill", 0, 0, 4.0, 4), Timing("prefill", 0, 1, 8.0, 4)]
    texts = [generation("alone", 0, seconds) for seconds in (10.0, 30.0)]
    texts.append(generation("alone", 0, 1e9, calls=3))
    # Multiples of 1.5 and 20: 2/3, 4/3, 1/2, 3/2.
    assert Spread.of([*parts, *texts]) == (pytest.approx(0.55), pytest.approx(1.45), 4)
    assert Spread.of(texts[1:]) is None
    first, second = printed.trust(0.1, None, cores=1)
    assert "0.1 on 1 core before, nothing was timed twice" in first
    assert "more texts or repeats" in second


def test_work_is_compared_with_the_same_work():
    """Four pairs of times, each its own text or mode, and a part in two turns: all 1 % apart."""
    works = [("alone", 0, 100.0), ("alone", 1, 3.0), ("speculative", 0, 40.0)]
    works += [("speculative", 1, 1.0)]
    records = [
        generation(mode, text, seconds * (0.99 + 0.02 * repeat), repeat)
        for mode, text, seconds in works
        for repeat in range(2)
    ]
    records += [Timing("prefill", 0, turn, 8 * (0.99 + 0.02 * turn), 8) for turn in range(2)]
    found = Spread.of(records)
    assert found is not None and found.timings == 10
    assert (found.low, found.high) == (pytest.approx(0.99), pytest.approx(1.01))


def test_each_line_is_explained_on_its_page():
    root = Path(__file__).parents[2]
    page = (root / "docs/reference/bench-lines.md").read_text(encoding="utf-8")
    explained = {name for line in page.splitlines() for name in re.findall(r"`([^`]+)`", line)}
    of_iterations = {"draft", "verify", "rest", "one iteration", "target alone"}
    text = shown().partition("\ngamma ")[0]  # the rest is what `specdec forecast` prints
    names = {line[:20].strip() for line in text.splitlines() if "NOT EXACT" not in line}
    assert names - {""} - of_iterations <= explained
