"""The search for how long to draft: pytest tests/predict/test_tune.py"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re

import numpy as np
import pytest

from specdec import cli
from specdec.common.statistics import ratio
from specdec.drafters import Autoregressive, Masked
from specdec.measure.alphas import Accepted
from specdec.measure.parts import Calls
from specdec.plan import Plan
from specdec.predict import schedule_replay, search, tuning
from specdec.predict.costs import Costs
from specdec.predict.hardware import LAYER_SECONDS, Call, Topology
from specdec.predict.tuning import Candidate, Result, Tried
from specdec.sampling import Greedy, Sampling
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Disco,
    Entropy,
    Fixed,
    Heuristic,
    JointConfidence,
)
from specdec.testing import TableTarget
from specdec.verifiers import GreedyMatch, SpeculativeSampling

COSTS = Costs(
    {Calls("target", width): 1 + 0.05 * width for width in range(1, 12)}
    | {Calls("draft", 1): 0.2, Calls("draft", 2): 0.25},
    prefill=3.0,
    prefill_alone=2.0,
    step=1.05,
    source="a test",
)


def tried(
    kind: str, setting: float, schedule: object, seconds: list[float], tokens: float = 2.0
) -> Tried:
    return Tried("", Candidate(kind, setting, schedule), tokens, np.array(seconds))


def test_what_is_best_is_chosen_on_one_half_and_judged_on_the_other():
    """By hand: confidence 0.4 is best where it is decided, 0.6 on the other texts."""
    all_tried = [
        tried("fixed", 2, Fixed(2), [5, 6, 5, 6], 2.25),
        tried("fixed", 3, Fixed(3), [6, 5, 6, 5], 2.5),
        tried("confidence", 0.4, Confidence(0.4), [3, 5, 3, 5], 2.75),
        tried("confidence", 0.6, Confidence(0.6), [4, 4, 4, 4], 3.0),
    ]
    even = np.array([True, False, True, False])
    found = Result.of("", all_tried, np.full(4, 10.0), np.full(4, 2.0), even, ~even)
    assert found.best.candidate.setting == 0.4 and found.static.candidate.setting == 2
    assert found.speedup(found.best) == (2.0, 2.0, 2.0)  # 20 / 10, of texts that are alike
    assert found.regret == pytest.approx(10 / 8 - 1)
    assert found.headroom == pytest.approx((12 - 10) / (12 - 4))
    assert ratio(found.static.seconds, found.best.seconds).value == pytest.approx(1.2)
    assert list(tuning.lines(found)) == [
        "predicted   95 % interval  tokens/call  schedule",
        f"     2.00    2.00 to 2.00         2.75  {Confidence(0.4)}",
        f"     2.50    2.50 to 2.50         3.00  {Confidence(0.6)}",
        "     2.00    2.00 to 2.00         2.50  Fixed(gamma=3)",
        "     5.00    5.00 to 5.00               an oracle of rejections",
        f"best     {Confidence(0.4)}: 2.00 times as fast as the target alone (2.00 to 2.00)",
        "         +20.0% (+20.0% to +20.0%) over Fixed(gamma=2), 25% of what an oracle would gain; "
        "25.0% slower than the fastest on these texts",
        "         it was chosen on one half of the texts; the table is of the other half",
    ]


def test_a_long_schedule_does_not_break_the_table():
    long = Confidence(0.123456789, buckets=tuple(range(1, 40)))
    assert len(str(long)) > 100
    every = [tried("fixed", 2, Fixed(2), [5, 6]), tried("confidence", 0.1, long, [3, 5])]
    half = np.array([True, False])
    found = Result.of("", every, np.full(2, 10.0), np.full(2, 2.0), half, ~half)
    head, *rows = itertools.takewhile(lambda line: line[:4] != "best", tuning.lines(found))
    columns = head.index("schedule")
    assert {row[:columns].count(" to ") for row in rows} == {1}
    assert [row[columns:] for row in rows] == [
        str(long),
        "Fixed(gamma=2)",
        "an oracle of rejections",
    ]


def test_costs_in_steps_of_the_target():
    """One more draft token takes 1 s, and a step of the target 10."""
    model = TableTarget(6)
    one = Plan(model, Autoregressive(model, Greedy()), GreedyMatch(), Fixed(2), Greedy(), 8)
    calls = {Calls("target", width): 9.0 + width for width in (1, 2, 3)}
    calls |= {Calls("draft", 2): 2.0, Calls("draft", 1): 1.0}
    costs = COSTS._replace(calls=calls, step=10.0)
    assert tuning.units(one, costs, (1, 2)) == (0.1, (1.1, 1.2))


def test_where_no_draft_pays_it_says_so():
    slow = [tried("fixed", 2, Fixed(2, stop_at_end=True), [11, 11])]
    every = np.array([True, True])
    found = Result.of("", slow, np.full(2, 10.0), np.full(2, 9.0), every, every)
    assert found.in_words() == "no draft pays, the target alone is faster"


def test_every_width_that_is_needed_is_a_bucket():
    assert [tuning.buckets(n) for n in (1, 2, 3, 5, 10)] == [
        (1,),
        (1, 2),
        (1, 3),
        (1, 3, 5),
        (1, 3, 7, 10),
    ]


def test_every_fixed_length_is_tried():
    assert [one.schedule for one in tuning.fixed(3)] == [
        Fixed(gamma, stop_at_end=True) for gamma in (1, 2, 3)
    ]


def test_a_text_begins_with_what_is_known_of_all():
    """The prior of `CostOptimal` is the share of all tokens that the drafter has right."""
    model = TableTarget(5)
    greedy = Plan(
        model, Autoregressive(model, Greedy()), GreedyMatch(), Fixed(2), Greedy(), max_length=8
    )
    one = {"index": 0, "tokens": 4, "accepted": {}, "output": [2, 3, 4, 1]}
    said = {"Autoregressive": {"proposed": [2, 3, 2, 2], "ratio": [0.5, 3.0, 0.0, 0.1]}}
    text = Accepted(**one, drafts=said)
    assert tuning.acceptance(greedy, [text, text]) == 0.5
    sampled = Autoregressive(model, Sampling())
    drawn = dataclasses.replace(
        greedy, drafter=sampled, sampling=Sampling(), verifier=SpeculativeSampling()
    )
    assert tuning.acceptance(drawn, [text]) == 0.4
    # A drafter of blocks: by its first places, and for drafts of a block at most.
    blocks = dataclasses.replace(greedy, drafter=Masked(TableTarget(8), Greedy(), masks=3))
    places = {"proposed": [[2, 9, 9], [9, 9, 9], [9, 9, 9], [1, 9, 9]]}
    assert tuning.acceptance(blocks, [text._replace(drafts={"Masked": places})]) == 0.5
    assert (schedule_replay.longest(blocks), schedule_replay.longest(greedy)) == (3, 7)
    wide = dataclasses.replace(blocks, schedule=Fixed(4))
    with pytest.raises(ValueError, match="drafts have 4 tokens but Masked drafts 3 at most"):
        schedule_replay.check(wide, [])
    costs = {Calls("target", width): 1.0 for width in (2, 3)}
    costs |= {Calls("draft", width): 0.1 for width in (1, 2)}
    found = list(tuning.varying(greedy, COSTS._replace(calls=costs, step=1.0), 2, [text]))
    (schedule,) = [one.schedule for one in found if one.kind == "cost_optimal"]
    assert schedule == CostOptimal(0.1, (1.0, 1.0), (1, 2), 0.5)


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    """Flags of a small search on the embedded pair."""
    folder = tmp_path_factory.mktemp("tune")
    costs = folder / "costs.json"
    costs.write_text(json.dumps(COSTS.record()), encoding="utf-8")
    flags = ["--gin_file=demo.gin", "--limit=24", f"--costs={costs}", "--longest=4"]
    return folder, [*flags, f"--compilation_cache_dir={cache}"]


@pytest.fixture(scope="module")
def done(run):
    folder, flags = run
    few = pytest.MonkeyPatch()
    with few.context() as patch:
        patch.setattr(tuning, "CONFIDENCES", (0.3, 0.6))
        patch.setattr(tuning, "ENTROPIES", (1.0,))
        assert cli.main(["tune", *flags, f"--output_dir={folder / 'out'}"]) == 0
    return folder / "out"


@pytest.mark.ci
def test_the_recommendation_is_a_gin_file(run, done):
    lines = [json.loads(line) for line in (done / "tried.jsonl").read_text().splitlines()]
    even = [sum(line["seconds"][::2]) for line in lines]
    best = lines[int(np.argmin(even))]
    from specdec.cli import run as runs

    parser = cli.overview()
    flags = [*run[1][:1], f"--gin_file={done / 'tuned.gin'}"]
    args = parser.parse_args(["decode", *flags])
    assert repr(runs.described(args).plan.schedule) == best["schedule"]
    kinds = {line["kind"] for line in lines}
    stopping = {"confidence", "joint_confidence", "entropy"}
    assert kinds == {"fixed", "cost_optimal", "heuristic", *stopping}
    drawn = (done / "surface.svg").read_text()
    assert all(f">{kind.replace('_', ' ')}</text>" in drawn for kind in kinds)


@pytest.mark.parametrize(
    "kind, schedule",
    [
        ("fixed", Fixed(3, stop_at_end=True)),
        ("fixed", Fixed(3, shorter=(0, 1))),
        ("confidence", Confidence(0.3, buckets=(1, 2))),
        ("joint_confidence", JointConfidence(0.3, buckets=(1, 2))),
        ("entropy", Entropy(0.7, buckets=(2,))),
        ("heuristic", Heuristic(2, (1, 3))),
        ("cost_optimal", CostOptimal(0.05, (1.2, 1.3), (1, 3), 0.9)),
    ],
)
def test_whatever_is_recommended_can_be_run(run, tmp_path, kind, schedule):
    from specdec.cli import run as runs

    found = tried(kind, 0, schedule, [1.0, 1.0])
    best = Result("", found, found, [found], alone=np.full(2, 3.0), oracle=np.ones(2))
    (tmp_path / "tuned.gin").write_text(search.settings_of(best))
    flags = ["decode", *run[1][:1], f"--gin_file={tmp_path / 'tuned.gin'}"]
    assert runs.described(cli.overview().parse_args(flags)).plan.schedule == schedule


@pytest.mark.ci
def test_seconds_are_those_of_a_forecast(run, done):
    """The formula of the costs, from the calls that the engine makes."""
    lines = [json.loads(line) for line in (done / "tried.jsonl").read_text().splitlines()]
    texts = [json.loads(line) for line in (done / "passes.jsonl").read_text().splitlines()]
    (line,) = [one for one in lines if one["schedule"] == "Fixed(gamma=3, stop_at_end=True)"]
    calls = {1: 1.2, 2: 1.2, 3: 1.2}
    for text, seconds in zip(texts, line["seconds"], strict=True):
        # A call costs 1.2, its draft of n tokens 0.25 for two positions at once and 0.2 for each
        # token behind the first.
        least = COSTS.prefill + calls[3] * text["tokens"] / 4
        most = COSTS.prefill + (calls[3] + 0.25 + 2 * 0.2) * text["tokens"]
        assert least < seconds < most
    found = line["tokens_per_call"]
    assert 1 < found < 4


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(run, done, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "CONFIDENCES", (0.3, 0.6))
    monkeypatch.setattr(tuning, "ENTROPIES", (1.0,))
    folder, flags = run
    before = (done / "tried.jsonl").read_text()
    (done / "tried.jsonl").write_text("".join(before.splitlines(True)[:3]) + '{"torn')
    again, real = [], search.replayed

    def counted(run, plan, *rest):
        again.append(plan.schedule)
        return real(run, plan, *rest)

    monkeypatch.setattr(search, "replayed", counted)
    assert cli.main(["tune", *flags, f"--output_dir={done}"]) == 0
    assert (done / "tried.jsonl").read_text() == before
    assert len(again) == len(before.splitlines()) - 3 + 1, "what was lost, and the oracle"
    assert "best     " in capsys.readouterr().out


@pytest.mark.slow
def test_drafters_are_compared(run, tmp_path, monkeypatch, capsys):
    """A copy drafts along the passes of the first one; where nothing pays, nothing drafts."""
    monkeypatch.setattr(tuning, "CONFIDENCES", (0.3,))
    monkeypatch.setattr(tuning, "ENTROPIES", ())
    dear = COSTS._replace(calls={name: 50.0 for name in COSTS.calls})
    for costs, found in ((COSTS, "include 'schedules/"), (dear, "DRAFTER = None")):
        file = tmp_path / "costs.json"
        file.write_text(json.dumps(costs.record()), encoding="utf-8")
        out = tmp_path / found[:2]
        variants = ["--variant=", "--variant=drafters/prompt_lookup.gin;LOOKUP_LONGEST=3"]
        flags = [*run[1], f"--costs={file}", "--longest=2", *variants, f"--output_dir={out}"]
        assert cli.main(["tune", *flags]) == 0, capsys.readouterr().err
        assert found in (out / "tuned.gin").read_text()
        lines = [json.loads(line) for line in (out / "tried.jsonl").read_text().splitlines()]
        assert {line["variant"] for line in lines} == {"", variants[1].removeprefix("--variant=")}
        assert [x.name for x in out.glob("passes*.jsonl")] == ["passes.jsonl"]
    assert capsys.readouterr().out.count("\nbest     ") == 4
    assert cli.main(["tune", *flags, "--longest=1"]) == 2
    assert "was begun with --longest = 2, and now it is 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pair_is_tuned_for_a_tpu_that_is_not_there(run, tmp_path, monkeypatch, capsys):
    """By the calls that `specdec compile` has written of one of its topologies."""
    monkeypatch.setattr(tuning, "CONFIDENCES", (0.3,))
    monkeypatch.setattr(tuning, "ENTROPIES", ())
    calls = {"target": Call(1e9, 1e9, 24), "draft": Call(1e8, 1e8, 8)}
    topologies = [Topology.parse(name) for name in ("v5e:1x1", "v4:1x1x1")]
    file = tmp_path / "compiled.json"
    written = [
        {
            "topology": topology.name,
            "chip": dataclasses.asdict(topology.chip),
            "calls": {role: dataclasses.asdict(call) for role, call in calls.items()},
            "assumed": {"layer_seconds": LAYER_SECONDS},
        }
        for topology in topologies
    ]
    file.write_text(json.dumps({"topologies": written}))
    out, flags = tmp_path / "out", [*run[1], f"--costs={file}", "--longest=2"]
    assert cli.main(["tune", *flags, f"--output_dir={out}"]) == 2
    assert "no calls of topology None; give one of v5e:1x1, v4:1x1x1" in capsys.readouterr().err
    assert cli.main(["tune", *flags, "--topology=v4:1x1x1", f"--output_dir={out}"]) == 0
    assert "a roofline of v4:1x1x1 and 14 us for each layer" in capsys.readouterr().out
    assert "include 'schedules/" in (out / "tuned.gin").read_text()
    texts = [json.loads(line)["tokens"] for line in (out / "passes.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in (out / "tried.jsonl").read_text().splitlines()]
    (line,) = [one for one in lines if one["schedule"] == "Fixed(gamma=1, stop_at_end=True)"]
    a_call = sum(
        call.seconds(topologies[1].chip, width=2, layer_seconds=LAYER_SECONDS)
        for call in calls.values()
    )
    expected = sum(texts) / line["tokens_per_call"] * a_call
    assert sum(line["seconds"]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--tokens=0"], "--tokens is 0; give a positive integer"),
        (["--longest=0"], "--longest is 0; give a positive integer"),
        (["--longest=60"], "--longest is 60 but outputs hold 48; give a shorter length"),
        (["--gin.LOSSY=True", "--verifier=top_beta"], "VERIFIER is TopBeta.*not exact"),
        (["--gin.DRAFTER=None"], "the run has no drafter"),
        (["--variant=GAMMA=2", "--variant=GAMMA=2"], "--variant=GAMMA=2 is given twice"),
    ],
)
def test_a_mistake_is_one_line(run, capsys, monkeypatch, tmp_path, flags, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *run[1], "--output_dir=out", *flags]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("specdec: ")]
    assert re.search(message, line)


@pytest.fixture(scope="module")
def trained(run, done):
    """Flags of a run that stops by a classifier trained on the search's own texts, and what the
    training said."""
    out, said = done.parent / "classifier", io.StringIO()
    flags = [run[1][0], f"--passes={done / 'passes.jsonl'}", f"--output_dir={out}", "--steps=300"]
    with contextlib.redirect_stdout(said):
        assert cli.main(["train", "--table=classifier", *flags]) == 0
    texts = (out / "train.log").read_text().splitlines()
    assert len(texts) == 2 and "held out" in texts[0]
    disco = ["--schedule=disco", f"--gin.SCHEDULE_TABLE_PATH='{out / 'table'}'"]
    return [run[1][0], run[1][-1], *disco], said.getvalue()


@pytest.mark.slow
def test_a_classifier_is_trained_saved_and_decoded_with(run, done, trained, capsys):
    """And it tells kept tokens from refused ones, on texts that it was not fitted to."""
    flags, said = trained
    share = float(re.search(r"a rejected one in ([\d.]+)%", said)[1])
    assert share > 55  # 50 is what a coin finds
    assert cli.main(["decode", *flags, "--limit=2", "--compare"]) == 0
    assert "all 2 outputs identical" in capsys.readouterr().err
    bad = [f"--gin.SCHEDULE_TABLE_PATH='{done}'"]
    command = ["decode", run[1][0], "--limit=2"]
    assert cli.main([*command, "--schedule=disco", *bad]) == 2
    assert "is no table" in capsys.readouterr().err
    assert cli.main([*command, "--schedule=disco"]) == 2
    assert "SCHEDULE_TABLE_PATH is required" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_schedule_is_measured_and_certified(trained, tmp_path):
    path, flags = tmp_path / "bench.jsonl", trained[0]
    assert cli.main(["bench", *flags, "--limit=3", "--repeats=1", f"--output_file={path}"]) == 0
    found = json.loads((tmp_path / "bench.jsonl.summary.json").read_text())
    assert found["run"]["schedule"].startswith("Disco(") and found["run"]["gamma"] is None
    assert found["identical"] == found["texts"] == 3
    assert "fingerprint of schedule" in (tmp_path / "bench.jsonl.gin").read_text()
    path = tmp_path / "certificate.json"
    assert cli.main(["verify", *flags, "--limit=2", f"--output_file={path}"]) == 1
    found = json.loads(path.read_text())
    assert found["passed"] and not found["certified"]  # two texts are too few
    assert "SCHEDULE = @schedules.Disco()" in found["settings"]


def test_examples_weigh_what_is_reached():
    """Behind a refused token nothing counts; of drawn texts as much as it is likely."""
    from specdec.training import classifier

    top = np.zeros([4, 10])
    one = {"confidence": np.zeros(4), "entropy": np.arange(4), "top": top}
    found = classifier.examples([one | {"accepted": [1, 0, 0.5, 1]}], 3)
    starts = {
        0: [(0, 1, 1), (1, 0, 1)],
        1: [(1, 0, 1)],
        2: [(2, 0.5, 1), (3, 1, 0.5)],
        3: [(3, 1, 1)],
    }
    expected = [
        (at, depth, label, weight)
        for own in starts.values()
        for depth, (at, label, weight) in enumerate(own)
    ]
    rows = [(x[-2], x[-1], y, w) for x, y, w in zip(*found, strict=True)]
    assert rows == expected


def test_a_classifier_finds_what_there_is_to_find():
    """Acceptance that depends on the entropy alone, and on the depth."""
    from specdec.training import classifier

    rng = np.random.default_rng(0)
    features = np.zeros([4000, 12], np.float32)
    features[:, 10], features[:, 11] = rng.random(4000) * 2, rng.integers(0, 5, 4000)
    chance = np.where(features[:, 10] + features[:, 11] / 5 < 1.2, 0.95, 0.15)
    label = (rng.random(4000) < chance).astype(np.float32)
    of = classifier.Examples(features, label, np.ones(4000, np.float32))
    given, held = (classifier.Examples(*(x[i::2] for x in of)) for i in (0, 1))
    params = classifier.fit(given, held, steps=400)
    from specdec.schedules.stopping import logit

    found = classifier.separation(np.asarray(logit(params, held.features)), held)
    best = classifier.separation(chance[1::2], held)
    assert found > best - 0.02 > 0.85
    assert classifier.separation(-chance[1::2], held) == pytest.approx(1 - best)
    assert Disco(0.5).tables()["schedule"].kind == "classifier"
    assert schedule_replay.needed  # the schedule's table is among what a replay needs
