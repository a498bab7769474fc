"""`specdec forecast`: its figures by hand, its costs, and the command: pytest tests/predict"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import bytes_run, check_lines, tiny_t5

from specdec import cli
from specdec.common import theory
from specdec.common.records import RecordsError
from specdec.drafters import Autoregressive, Hybrid, PromptLookup
from specdec.engine import Placement
from specdec.measure import recorded_texts
from specdec.measure.alphas import Accepted
from specdec.measure.file import Timing
from specdec.measure.parts import Key, key_of
from specdec.plan import Plan
from specdec.predict import predicted_speedup, stored_costs, timed_costs
from specdec.predict.costs import Costs
from specdec.predict.schedule_replay import Replayed
from specdec.predict.timed_costs import timed
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
TARGET = TableTarget(6)
MODEL = Autoregressive(TARGET, Greedy())


def keyed(seconds: dict[str, float]) -> dict[Key, float]:
    """By part, of seconds by the names that parts have in files."""
    return {key_of(name): one for name, one in seconds.items()}


CALLS = {"target 1": 10.0, "target 2": 11.0, "target 3": 12.0, "draft 2": 2.0, "draft 1": 1.0}
COSTS = Costs(keyed(CALLS), prefill=7.0, prefill_alone=5.0, step=10.0, source="by hand")


def plan(gamma: int = 2, drafter: Any = MODEL) -> Plan:
    return Plan(TARGET, drafter, GreedyMatch(), Fixed(gamma), Greedy(), max_length=8)


def replayed(
    accepted: list[list[int]], drafted: int = 2, source: Any = None, depth: Any = None
) -> Replayed:
    """Of texts with these accepted tokens in their calls; none ends within a draft."""
    calls = np.array([len(row) for row in accepted])
    tokens = np.array([sum(row) + len(row) for row in accepted])
    kept = np.zeros([len(accepted), 8], np.int32)
    for row, values in zip(kept, accepted, strict=True):
        row[: len(values)] = values
    made = np.arange(8)[None] < calls[:, None]
    return Replayed(tokens, calls, np.where(made, drafted, 0), kept, source, depth)


def test_figures_by_hand():
    """Two texts of 6 and 2 tokens in 3 and 1 calls of 2 + 1 + 12 seconds."""
    by_gamma = {1: COSTS, 2: COSTS}
    found = predicted_speedup.predict(plan(), replayed([[2, 0, 1], [1]]), by_gamma, 2, alpha=0.5)
    assert (found.gamma, found.texts, found.tokens, found.calls) == (2, 2, 8, 4)
    assert found.tokens_per_call.value == 2
    assert found.speedup and found.speedup.value == pytest.approx((10 + 80) / (14 + 4 * 15))
    assert found.speedup.low <= found.speedup.value <= found.speedup.high
    assert found.formula_tokens_per_call == 1.75
    assert found.formula_speedup == pytest.approx(theory.speedup(0.5, 2, 0.15, 1.2))
    # Drafts of 2, 0, 1 and 1 tokens.
    oracle = 14 + (2 + 1 + 12) + 10 + 2 * (2 + 11)
    assert found.oracle_speedup == pytest.approx(90 / oracle)
    # Of four drafts one is refused at its first token, and of three two at the second.
    assert found.hazard == [0.25, 2 / 3]
    kept, gain = found.tokens_per_call, found.speedup
    assert found.record() == {
        **{"variant": "", "drafter": "Autoregressive", "schedule": "Fixed(gamma=2)"},
        **{"sampling": "Greedy()", "alpha": 0.5, "costs": "by hand", "gamma": 2, "texts": 2},
        **{"tokens": 8, "calls": 4, "tokens_per_call": 2, "speedup": gain.value},
        **{"tokens_per_call_interval": [kept.low, kept.high]},
        **{"speedup_interval": [gain.low, gain.high], "formula_tokens_per_call": 1.75},
        **{"formula_speedup": found.formula_speedup, "oracle_speedup": found.oracle_speedup},
        "hazard": [0.25, 2 / 3],
    }


FOUR = [[2, 0, 1], [1], [2, 2], [0, 0, 0]]  # texts of 6, 2, 6 and 3 tokens


@pytest.mark.parametrize(
    "rows, alone, taken",
    [
        # As many steps of 10 s; 3, 1, 2 and 3 calls of 2 + 1 + 12 s.
        (1, 4 * 5 + 17 * 10, 4 * 7 + 9 * 15),
        (2, 2 * 5 + (6 + 6) * 10, 2 * 7 + (3 + 3) * 15),  # the longest of each two
        (4, 5 + 6 * 10, 7 + 3 * 15),
    ],
)
def test_a_batch_is_done_when_its_slowest_text_is(rows, alone, taken):
    """Layers are those of the nine calls that were made; the other places are of no call."""
    depth = np.full([4, 8], 99)
    for row, values in zip(depth, [[4, 2, 6], [8], [6, 6], [4, 4, 5]], strict=True):
        row[: len(values)] = values
    found = predicted_speedup.predict(plan(), replayed(FOUR), {2: COSTS}, 4, None, rows=rows)
    assert found.speedup is not None and found.speedup.value == pytest.approx(alone / taken)
    assert (found.texts, found.tokens, found.calls) == (4, 17, 9)
    assert found.tokens_per_call.value == pytest.approx(17 / 9)
    found = predicted_speedup.predict(
        plan(), replayed(FOUR, depth=depth), {2: COSTS}, 4, None, rows=rows
    )
    if rows == 1:
        assert found.layers == pytest.approx((4 + 2 + 6 + 8 + 6 + 6 + 4 + 4 + 5) / 9)


def test_samples_are_means_of_their_texts():
    twice = replayed([[2, 0, 1], [1], [2, 2], [1]])  # the first text's calls are 3, then 2
    found = predicted_speedup.predict(plan(), twice, {2: COSTS}, 2, alpha=None)
    assert found.calls == (3 + 1 + 2 + 1) / 2
    assert found.formula_speedup is None and found.formula_tokens_per_call is None


def test_a_target_that_decodes_alone_is_as_fast_as_itself():
    """Two texts of three tokens and of two: 5 + 10 s a token."""
    alone = plan().alone()
    costs = {alone.gamma: COSTS._replace(prefill=5.0)}
    made = replayed([[0, 0, 0], [0, 0]], drafted=0)
    found = predicted_speedup.predict(alone, made, costs, 2, alpha=None)
    assert (found.gamma, found.tokens, found.calls, found.oracle_speedup) == (0, 5, 5, None)
    assert found.speedup == (1, 1, 1)


def test_a_part_whose_costs_are_not_known_leaves_a_gap():
    calls = keyed({"target 3": 12.0, "draft 2": 2.0, "draft 1": 1.0})
    known = Costs(calls, 7.0, 5.0, 10.0, "some")
    found = predicted_speedup.predict(plan(), replayed([[2, 0], [1]]), {2: known}, 2, alpha=0.5)
    assert found.speedup is not None and found.oracle_speedup is None
    other = predicted_speedup.predict(plan(1), replayed([[1]], 1), {1: known}, 1, alpha=0.5)
    assert other.speedup is None and other.formula_tokens_per_call == 1.5
    assert not other.record().keys() & {"speedup", "speedup_interval", "formula_speedup"}
    assert predicted_speedup.best([found, other]) is found
    assert "the target alone" in list(predicted_speedup.lines([other, found]))[-1]


def test_of_two_drafters_each_call_costs_what_its_own_takes():
    both = plan(2, Hybrid(PromptLookup(), MODEL))
    source = np.array([[0, 1, 0, 0, 0, 0, 0, 0]])
    found = predicted_speedup.predict(
        both, replayed([[2, 0]], 2, source), {2: COSTS}, 1, alpha=None
    )
    assert found.speedup
    assert found.speedup.value == pytest.approx((5 + 4 * 10) / (7 + 12 + (2 + 1 + 12)))


class Bar(list):
    """A bar of progress that keeps what it is told."""

    def update(self, amount: float = 1) -> None:
        self.append(amount)


def test_costs_are_measured_by_turns(monkeypatch):
    """With a clock that tells nothing but which part runs."""
    bar, asked = Bar(), []
    show = lambda *given: asked.append(given) or contextlib.nullcontext(bar)  # noqa: E731
    monkeypatch.setattr(timed_costs.progress, "bar", show)
    params = TARGET.init(jax.random.key(0))
    inputs = np.array([[2, 3]], np.int32)
    ticks = iter(range(10**6))
    plans = {gamma: plan(gamma) for gamma in (1, 2)}
    roles: list[str] = []
    tree_of = lambda role, model: roles.append(role) or params  # noqa: E731
    found = timed(plans, plan().alone(), tree_of, inputs, clock=lambda: float(next(ticks)))
    # Calls of one model read its parameters, and a prefill and a turn those of both.
    assert Counter(roles) == {"alone": 2, "target": 2 + 2, "draft": 2 + 2}
    steps = 8  # of a scan of the longest output
    assert found[2].calls.keys() == {("target", 3), ("draft", 2), ("draft", 1)}
    assert found[1].calls == keyed({"target 2": 1 / steps, "draft 2": 1 / steps})
    assert found[1].source == found[2].source == "measured here, medians of 7 turns"
    parts = 8  # two prefills, three widths of the target, two of the draft, and the longest turn
    assert asked == [("timing parts", 8 * parts, "part")] and sum(bar) == 8 * parts
    assert (found[1].prefill, found[1].prefill_alone, found[1].step) == (1.0, 1.0, 1 / steps)


def test_a_draft_that_takes_longer_in_a_turn_costs_more_at_every_length():
    """With a clock that lets the turn, the last of eight parts, take four times as long as each."""
    params, now = TARGET.init(jax.random.key(0)), [0.0]
    ticks = iter(range(10**6))

    def clock() -> float:
        part, ends = divmod(next(ticks), 2)
        now[0] += ends * (4 if part % 8 == 7 else 1)
        return now[0]

    plans, inputs = {gamma: plan(gamma) for gamma in (1, 2)}, np.array([[2, 3]], np.int32)
    found = timed(plans, plan().alone(), lambda *_: params, inputs, clock=clock)
    drafts = (4 - 1) / 2 / 8  # without the target's call, two calls, 8 times in a run
    assert found[2].calls == keyed({"target 3": 1 / 8, "draft 2": drafts, "draft 1": drafts})
    assert found[1].calls == keyed({"target 2": 1 / 8, "draft 2": drafts})


def test_costs_of_a_benchmark_are_its_medians():
    path = ROOT / "docs" / "results" / "amd_epyc_avx512_2_cores" / "ende_t0.jsonl"
    summary = json.loads(Path(f"{path}.summary.json").read_text())
    found, known = stored_costs.read(str(path), None), summary["prediction"]
    iteration = found.iteration(plan(summary["run"]["gamma"]).parts()).seconds
    assert iteration == pytest.approx(known["draft"] + known["verify"])
    assert found.prefill == known["prefill"]
    assert found.step == summary["baseline"]["target_step"]
    with pytest.raises(RecordsError, match=r"--topology is v4:1x1x1, and .*; leave --topology out"):
        stored_costs.read(str(path), "v4:1x1x1")


def test_a_draft_costs_what_it_takes_in_a_turn(tmp_path):
    """In the lines of a benchmark, and measured here: the target's calls are timed as they are."""
    seconds = {"prefill": 7, "alone prefill": 5, "alone 1": 10, "target 3": 12}
    seconds |= {"draft 2": 2, "draft 1": 1, "turn of 1 x draft 2, 1 x draft 1, 1 x target 3": 18}
    path = tmp_path / "bench.jsonl"
    lines = [Timing(part, 0, 0, float(one), 1)._asdict() for part, one in seconds.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = stored_costs.read(str(path), None)
    for key, expected in keyed({"target 3": 12, "draft 2": 4, "draft 1": 2}).items():
        assert found.calls[key] == expected
    assert (found.step, found.prefill, found.prefill_alone) == (10, 7, 5)


# The command.


LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    """The flags of a run of two models of bytes, which draws."""
    more = "include 'sampling/temperature.gin'\nBATCH_SIZE = 2\n"
    path = bytes_run(tmp_path_factory.mktemp("run"), "forecast", {"test": LINES}, more)
    flags = [f"--gin_file={path}", f"--compilation_cache_dir={cache}"]
    return [*flags, "--gin_file=verifiers/speculative_sampling.gin"]


@pytest.fixture(scope="module")
def passes(run, tmp_path_factory):
    """The flags of the run and of its passes, whose texts no model has written."""
    path = tmp_path_factory.mktemp("passes") / "passes.jsonl"
    said = {"Autoregressive": {"proposed": [5, 1], "ratio": [1.0, 1.0], "refused": [0.0, 0.0]}}

    def measured(plan, params, batches, **how):
        for index, inputs in batches:
            for one, ids in zip(index, inputs, strict=True):
                if one >= 0:
                    own, made = ids[ids > 0].tolist(), {"model": [1.0] * 4}
                    yield Accepted(int(one), 2, made, own, [5, 1], said, proposes=2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_texts, "_shown", lambda batches, total: batches)
        patch.setattr(
            recorded_texts.recording, "generate", lambda plan, params, given, **how: given
        )
        patch.setattr(recorded_texts.recording, "measure", measured)
        assert cli.main(["acceptance", *run, f"--output_file={path}"]) == 0
    check_lines("acceptance", path)
    return [*run, f"--passes={path}"]


@pytest.mark.ci
def test_the_command(run, tmp_path, capsys):
    given = tmp_path / "passes.jsonl"
    assert cli.main(["acceptance", *run, f"--output_file={given}"]) == 0
    path = tmp_path / "forecast.jsonl"
    flags = ["--gammas=1,3", f"--passes={given}", f"--output_file={path}", "--variant=GAMMA=2"]
    copying = ["--variant=drafters/prompt_lookup.gin;DRAFT_CHECKPOINT_PATHS={}"]
    assert cli.main(["forecast", *run, *flags, *copying]) == 0, capsys.readouterr().err
    check_lines("forecast", path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    drafters = [(line["drafter"], line["gamma"]) for line in lines]
    assert drafters == [(name, g) for name in ("Autoregressive", "PromptLookup") for g in (1, 3)]
    assert all(line["speedup"] > 0 and line["oracle_speedup"] > 0 for line in lines)
    assert ["alpha" in line for line in lines] == [True, True, False, False]
    assert capsys.readouterr().out.count("best     ") == 2


def test_what_recorded_texts_depend_on(passes):
    """All settings of the target's texts, and of what a drafter says along them."""
    (line,) = (
        x
        for x in Path(f"{passes[-1].partition('=')[2]}.gin").read_text().splitlines()
        if x.startswith("# recorded = ")
    )
    found = json.loads(line.partition("= ")[2])
    given = [found["texts"], *found["drafters"].values()]
    digits = {k: one.pop(k) for one in given for k in [*one] if k.startswith("fingerprint")}
    assert [*digits] == [f"fingerprint of {x}" for x in ("target", "draft")]
    assert len({*digits.values()}) == 2 and {*map(len, digits.values())} == {16}
    drawn = {"": "Sampling", ".temperature": 1.0, ".top_k": None, ".top_p": None}

    def model(name, width):
        config = dataclasses.asdict(tiny_t5(261, width, head_dim=4))
        fields = {f"{name}.config.{field}": value for field, value in config.items()}
        known = {
            name: "T5Target",
            f"{name}.config": "T5Config",
            **fields,
            f"{name}.weights": "stored",
        }
        return json.loads(json.dumps({k: v for k, v in known.items() if k in found_names}))

    def drafter(name):
        sampling = {f"{name}.sampling{field}": value for field, value in drawn.items()}
        own = {name: "Autoregressive", f"{name}.view": None, f"{name}.role": "draft"}
        return own | sampling | model(f"{name}.model", 7)

    found_names = {name for one in given for name in one}
    assert found["texts"] == {
        **{"TASK": "forecast", "SPLIT": "test", "the given texts": None, "SEED": 0},
        **{"DECODER_PREFIX": "", "NUM_SAMPLES": 1, "the length of inputs": 16, "max_length": 8},
        **{"stop_ids": [1], "the vocabulary's size": 259},
        **{f"sampling{field}": value for field, value in drawn.items()},
        **model("target", 11),
    }
    names = ("drafter", "Autoregressive")
    assert found["drafters"] == {name: drafter(name) for name in names}


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gin.SEED=3"], "is of SEED = 0, and the run has 3; make passes of this run"),
        (["--gammas=8"], "--gammas has 8 but outputs hold 8; give shorter drafts"),
        (["--gin_file=verifiers/coupled.gin"], "VERIFIER is Coupled.*; give verifiers/"),
        (["--gin.TEMPERATURE=0.5"], "is of sampling.temperature = 1.0, and the run has 0.5"),
        (["--gin.INT8=('target',)"], "is of target.weights = 'stored', and the run has 'int8'"),
        (
            ["--gin.draft/checkpoints.model_from.dtype='bfloat16'"],
            "is of Autoregressive.model.config.dtype = 'float32'",
        ),
        (["--gin_file=drafters/no_source.gin"], "is of Autoregressive.view = None, and the run"),
        (["--gin.CHECKPOINT_PATH=%DRAFT_CHECKPOINT_PATH"], "is of fingerprint of target = "),
        (["--gin.DRAFT_CHECKPOINT_PATH=%CHECKPOINT_PATH"], "is of fingerprint of draft = "),
        (["--variant=GAMMA=1", "--variant=INT8=('draft',)"], "Autoregressive.model.weights = 's"),
        (["--costs=none.jsonl"], "--costs none.jsonl does not exist; "),
    ],
)
def test_a_mistake_is_one_line(passes, capsys, monkeypatch, flags, message):
    monkeypatch.setattr(Placement, "read", lambda *_: pytest.fail("long work"))
    assert cli.main(["forecast", *passes, *flags]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("specdec: ")]
    assert re.search(message, line)


def test_a_classifier_is_trained_on_texts_of_the_run(passes, tmp_path, capsys):
    """Whose drafter says the same."""
    given = [*passes[:1], *passes[2:], "--gin.INT8=('draft',)", f"--output_dir={tmp_path / 'out'}"]
    assert cli.main(["train", "--table=classifier", *given]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("specdec: ")]
    assert "is of Autoregressive.model.weights = 'stored', and the run has 'int8'" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["SEED=3", "MIN_LENGTH=2"])
def test_variants_of_a_search_have_one_target(passes, tmp_path, capsys, monkeypatch, setting):
    monkeypatch.setattr(Placement, "read", lambda *_: pytest.fail("long work"))
    flags = ["--variant=GAMMA=1", f"--variant={setting}", f"--output_dir={tmp_path / 'out'}"]
    assert cli.main(["tune", *passes[:-1], *flags]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("specdec: ")]
    assert re.search(rf"--variant={re.escape(setting)} has .* = .*, and the first variant", line)
