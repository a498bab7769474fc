"""The certificate passes what is sound and fails what is not: pytest tests/certificate

Each planted bug below makes the command exit with 1, by the check that is there to see it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from support import StatesTable, TableHeads, few, teacher_forced, tiny_t5

from specdec import certificate, checkpoints, cli
from specdec.certificate import Check, Power, Subject, certifying, drawn, exactness
from specdec.decoding import decode, keys, loop, states
from specdec.drafters import Autoregressive, Blockwise, Hybrid, InputCopy, Masked, PromptLookup
from specdec.drafters.autoregressive import Memory
from specdec.models import partitioning
from specdec.models.contract import cache as cache_module
from specdec.models.contract.cache import KVCache
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import (
    Greedy,
    MinLength,
    NoRepeatNGram,
    Processed,
    RepetitionPenalty,
    Sampling,
)
from specdec.schedules import Fixed
from specdec.testing import Bench, Constant, Skipping, TableTarget
from specdec.testing import part_checks as bench_checks
from specdec.types import History, Noise
from specdec.verifiers import (
    Block,
    Coupled,
    GreedyMatch,
    Lenient,
    MinimumBlock,
    SpeculativeSampling,
    Typical,
)

LINES = ["one", "two words", "three words", "a", "five", "six, seven", "eight", "nine", "ten"]
CHECKS = [
    "algebra",
    "proposal",
    "greedy",
    "seeds",
    "perfect",
    "afresh",
    "hostile",
    "audit",
    "draws",
    "law",
    "broken",
]

RUN = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks

include 'decode.gin'
include 'drafters/autoregressive.gin'
include 'models/from_checkpoint.gin'
include 'tasks/local.gin'

CHECKPOINT_PATH = 'FOLDER/target'
DRAFT_CHECKPOINT_PATH = 'FOLDER/draft'
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'certificate'
TASK_FILES = {'test': 'FOLDER/test.tsv'}
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 16}
BATCH_SIZE = 4
GAMMA = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random target whose past matters (its parameters are doubled) and, as its drafter, a
    blurred copy: some drafts are accepted."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "test.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES))
    (folder / "run.gin").write_text(RUN.replace("FOLDER", str(folder)))
    config = tiny_t5(261)
    params = jax.tree.map(lambda x: 2 * x, T5Target(config).init(jax.random.key(0)))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    blurred = [
        x + 0.3 * jnp.std(x) * jax.random.normal(k, x.shape)
        for x, k in zip(leaves, keys, strict=True)
    ]
    half = dataclasses.replace(config, dtype="bfloat16")
    for name, trained in (("target", params), ("draft", jax.tree.unflatten(tree, blurred))):
        checkpoints.save(folder / name, trained, config=config)
        checkpoints.save(folder / "half" / name, trained, config=half)
    return folder


@pytest.fixture
def verify(folder, capsys, tmp_path):
    """Runs `specdec verify`; returns the exit code, the JSON, stdout and stderr."""

    def run(*flags):
        path = tmp_path / "certificate.json"
        code = cli.main(
            [
                "verify",
                f"--gin_file={folder / 'run.gin'}",
                "--compilation_cache_dir=",
                f"--output_file={path}",
                *flags,
            ]
        )
        record = json.loads(path.read_text()) if path.exists() else None
        return code, record, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_a_sound_run_is_certified(verify, folder, monkeypatch):
    monkeypatch.setattr(exactness, "LAW_ROWS", 20_000)
    code, record, out, err = verify("--seed=3")
    assert code == 1, out  # nine texts are too few, and all else is right
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["PASS", name] for name in CHECKS]
    assert "9 of 9 outputs identical to the target alone" in lines[2]
    assert lines[2].endswith("; shows a fault in 40% of the texts")
    assert lines[-1].startswith(
        "NOT ENOUGH TEXTS: all 11 checks passed, but 9 texts might not show"
    )
    assert "checking algebra" in err.splitlines()[0]

    assert record["passed"] and not record["certified"]
    assert [check["name"] for check in record["checks"]] == CHECKS
    for check in record["checks"]:
        assert check["passed"] and check["seconds"] > 0 and check["note"]
        assert check["demands"].keys() <= check["figures"].keys()
    figures = {check["name"]: check["figures"] for check in record["checks"]}
    assert figures["perfect"]["accepted"] == figures["perfect"]["drafted"] > 0
    assert len(figures["hostile"]["cases"]) == 16 and len(figures["hostile"]["slowdown"]) == 8
    assert figures["law"]["rows"] == 20_000 and figures["law"]["false_alarm"] == 1e-9
    assert (record["texts"], record["seed"], record["dtype"]) == (9, 3, "float32")
    for role in ("target", "draft"):
        count = sum(x.size for x in jax.tree.leaves(checkpoints.load(folder / role)))
        assert record[f"{role}_parameters"] == count
    assert {"versions", "device", "devices", "cpu", "cores", "xla_flags"} <= set(
        record["environment"]
    )
    assert "cli.DecodeRun" in record["settings"] and "GAMMA = 3" in record["settings"]


@pytest.mark.ci
def test_an_interrupted_certificate_goes_on(verify, tmp_path, monkeypatch):
    ran = []

    def first(subject):
        ran.append("first")
        return Check("first", {}, {}, "")

    def second(subject):
        ran.append("second")
        if len(ran) == 2:
            raise KeyboardInterrupt
        return Check("second", {}, {}, "")

    monkeypatch.setattr(certificate, "CHECKS", (first, second))
    code, record, _, err = verify()
    assert (code, record) == (130, None) and "to go on: specdec verify" in err
    code, _, _, err = verify("--seed=3")
    assert code == 2 and "was begun with" in err and "give another --output_file" in err
    assert verify()[0] == 0 and ran == ["first", "second", "second"]
    assert sorted(file.name for file in tmp_path.iterdir() if file.suffix != ".lock") == [
        "certificate.json"
    ]
    assert verify()[0] == 0 and ran[3:] == ["first", "second"]  # a finished one begins anew


@pytest.mark.planted
def test_a_planted_bug_fails_its_check(verify, plant):
    (algebra, *_) = certificate.CHECKS
    plant(certificate, "CHECKS", (algebra,))
    plant(Block, "residual", residual_of_p)
    code, record, out, _ = verify()
    assert code == 1 and out.startswith("FAIL algebra"), out
    assert out.splitlines()[-1].startswith("NOT CERTIFIED: algebra failed")
    assert not record["passed"] and not record["checks"][0]["passed"]


def check(name, power=None, passed=True):
    return Check(name, {"x": int(passed)}, {"x": ("==", 1)}, "so and so", power=power)


def certificate_of(*checks, texts=32, lossy=False):
    passed = all(one.passed for one in checks)
    record: Any = {"texts": texts, "passed": passed, "certified": passed}
    return certifying.Certificate([*checks], lossy, record)


def test_a_verdict_says_what_the_texts_would_have_shown():
    sure, texts = check("algebra"), Power.of_texts
    share = Power(0.02, 0.1, 9, "a group's share off by {:.3f}")
    found = certificate_of(sure, check("greedy", texts(32)), check("draws", share))
    assert found.verdict == (
        "CERTIFIED: all 3 checks passed; 32 texts would have shown a fault in 13% of the texts "
        "with probability 0.99"
    )
    assert str(found.checks[2]) == "PASS draws    so and so; shows a group's share off by 0.020"
    found = certificate_of(sure, check("greedy", texts(2)), check("draws", share), texts=2)
    assert found.verdict == (
        "NOT ENOUGH TEXTS: all 3 checks passed, but 2 texts might not show a fault in 15% of the "
        "texts; give 29"
    )
    assert certificate_of(sure).verdict == "CERTIFIED: all 1 checks passed"
    failed = certificate_of(sure, check("greedy", texts(2)), check("draws", share, passed=False))
    assert failed.verdict == "NOT CERTIFIED: draws failed"
    assert certificate_of(sure, lossy=True).verdict.startswith("LOSSY: ")


def test_the_power_of_a_check():
    """29 texts miss a fault in 15 % of them with probability 0.85^29 = 0.009, and 28 with 0.011."""
    power = Power.of_texts(9)
    assert power.deviation == pytest.approx(1 - 0.01 ** (1 / 9))
    assert (power.wanted, power.texts, power.enough) == (0.15, 29, False)
    assert (
        Power.of_texts(29).enough and not Power.of_texts(28).enough and not Power.of_texts(0).enough
    )
    # One case may fail, so two or more are seen: exp(-x) (1 + x) = 0.01 at x = 6.638.
    power = Power.of_cases(1000, 10, 0.002, "{}", 1e-4)
    assert power.deviation == pytest.approx(6.638e-3, rel=1e-3)
    assert power.texts == 34 and not power.enough  # 3319 cases, of 100 for each text
    assert Power.of_cases(100_000, 10, 0.002, "{}", 1e-4).deviation == pytest.approx(
        special.gammaincinv(11, 0.99) / 1e5
    )
    half = Power.by(lambda times: 0.2 / np.sqrt(times), 8, 0.1, "{:.1f} of it")
    assert (half.deviation, half.texts, half.seen, half.missed) == (
        0.2,
        32,
        "0.2 of it",
        "0.1 of it",
    )
    # Of no text as of one; nothing is off by more than all of it.
    for texts in (0, 1):
        half = Power.by(lambda times: 2.0 / np.sqrt(times), texts, 1.0, "{:.1f} of it")
        assert (half.deviation, half.texts) == (1.0, 4)
    assert Power.by(lambda times: 0.5 + 0 * times, 1, 0.1, "").texts == 10**6


def test_a_check_is_what_its_record_says():
    one = dataclasses.replace(check("greedy", Power.of_texts(2)), seconds=1.5)
    read = Check.of(json.loads(json.dumps(one.record())))
    assert (read.power, read.seconds, str(read)) == (one.power, 1.5, str(one)) and read.passed
    assert Check.of(json.loads(json.dumps(check("law").record()))).power is None


def test_after_an_algebraic_failure_no_other_check_is_run(monkeypatch):
    ran = []

    def algebra(subject):
        ran.append("algebra")
        return check("algebra", passed=False)

    def greedy(subject):
        ran.append("greedy")
        return check("greedy", passed=False)

    def draws(subject):
        ran.append("draws")
        return check("draws")

    monkeypatch.setattr(certificate, "CHECKS", (greedy, algebra, draws))
    assert [one.name for one in certificate.certify(TABLE)] == ["greedy", "algebra"]
    assert ran == ["greedy", "algebra"]


def test_a_ratio_that_is_not_a_number_is_explained(monkeypatch):
    class Textbook(SpeculativeSampling):
        def accept(self, draft, scores):
            certain = jax.nn.one_hot(draft.tokens, scores.probs.shape[1])
            q = certain if draft.probs is None else draft.probs
            p, q = (
                jnp.take_along_axis(x, draft.tokens[:, None], axis=1)[:, 0]
                for x in (scores.probs[:-1], q)
            )
            return jnp.minimum(1, p / q)

    with monkeypatch.context() as patch:
        patch.setattr(exactness, "law_errors", lambda *_: [("a law", np.nan)])
        found = outcome("algebra", verifier=Textbook())
    assert not found.passed and "where q is 0, p / q is not a number" in found.note
    with pytest.raises(AssertionError, match="off by nan; `accept` is called for every token"):
        bench_checks.check_verifier(Textbook(), gammas=(1,))


@pytest.mark.slow
def test_bfloat16_is_reported_as_it_is(verify, folder, plant):
    plant(certificate, "CHECKS", (certificate.exactness.greedy, certificate.exactness.audit))
    half = [f"--gin.{p}CHECKPOINT_PATH='{folder}/half/{n}'" for p, n in PAIR]
    code, record, out, _ = verify(*half)
    assert code == 0, out
    assert record["dtype"] == "bfloat16"
    greedy, audit = record["checks"]
    assert greedy["figures"]["identical_at_same_width"] == greedy["figures"]["texts"] == 9
    identical = greedy["figures"]["identical"]
    assert f"{identical} of 9 outputs identical to the target alone" in greedy["note"]
    assert audit["demands"]["largest_gap"][1] == audit["figures"]["largest_logit"] / 64


PAIR = (("", "target"), ("DRAFT_", "draft"))


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gin.DRAFTER=None", "--gin.DRAFT_CHECKPOINT_PATHS={}"], "no drafter"),
        (["--output_file=/nowhere/x.json"], "/nowhere/x.json cannot be written"),
        (["--gin.DECODER_PREFIX='Ein'"], "leave decoder_prefix empty"),
    ],
)
def test_a_mistake_is_one_line_before_any_long_work(capsys, monkeypatch, tmp_path, flags, message):
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: pytest.fail("long work"))
    path = tmp_path / "certificate.json"
    assert cli.main(["verify", "--gin_file=demo.gin", f"--output_file={path}", *flags]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("specdec: ") and message in line and out == "" and not path.exists()


# On the table model, whose programs compile in no time.

BENCH = Bench.create()
TABLE = Subject(
    Plan(
        BENCH.target,
        BENCH.drafter,
        SpeculativeSampling(),
        Fixed(3),
        Sampling(temperature=0.7, top_p=0.9),
        max_length=9,
    ),
    BENCH.params,
    np.array([[3, 1], [2, 2], [5, 0], [1, 1], [4, 3]] * 5, np.int32),
    batch_size=10,
)


def fresh(subject=TABLE, inputs=TABLE.inputs, **parts):
    """A subject which has decoded nothing yet, with other parts of a plan."""
    plan = dataclasses.replace(subject.plan, **parts)
    return dataclasses.replace(subject, plan=plan, inputs=inputs)


def outcome(check, **changes):
    (function,) = (c for c in certificate.CHECKS if c.__name__ == check)
    return function(fresh(**changes))


@pytest.mark.parametrize(
    "check",
    [
        "algebra",
        pytest.param("perfect", marks=pytest.mark.ci),
        pytest.param("law", marks=pytest.mark.slow),
    ],
)
def test_a_verifier_that_only_compares_argmaxes(check):
    result = outcome(check, verifier=GreedyMatch(), sampling=Greedy())
    assert result.passed, str(result)


PROCESSORS = (RepetitionPenalty(1.3), NoRepeatNGram(2), MinLength(3))


@pytest.mark.ci
@pytest.mark.parametrize(
    "check, base",
    [
        ("draws", Sampling(0.8)),
        pytest.param("audit", Greedy(), marks=pytest.mark.ci),
        *(
            pytest.param(check, base, marks=pytest.mark.slow)
            for check, base in [
                ("greedy", Greedy()),
                ("perfect", Greedy()),
                ("seeds", Sampling(0.8)),
            ]
        ),
        pytest.param("afresh", Sampling(0.8), marks=pytest.mark.slow),
    ],
)
def test_processors_are_certified_with_the_rest(check, base):
    result = outcome(check, sampling=Processed(base, PROCESSORS))
    assert result.passed, str(result)


@pytest.mark.planted
@pytest.mark.parametrize("check", few(["audit", "draws"]))
def test_processors_that_verification_forgets_are_seen(check, plant):
    """The target's call takes none of the committed tokens for the text's."""

    class Forgetful(History):
        def ahead(self, block):
            return History.ahead(self.replace(length=jnp.ones_like(self.length)), block)

    plant(states, "History", Forgetful)
    result = outcome(check, sampling=Processed(Sampling(0.8), PROCESSORS))
    assert not result.passed, str(result)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        pytest.param({"verifier": Coupled(), "sampling": Sampling()}, marks=pytest.mark.slow),
        pytest.param({"verifier": GreedyMatch(), "sampling": Greedy()}, marks=pytest.mark.slow),
        pytest.param({"drafter": Constant(3), "sampling": Sampling(1.3)}, marks=pytest.mark.slow),
    ],
    ids=["as it is", "coupled", "greedy", "copier"],
)
def test_draws_have_the_targets_probabilities(parts):
    result = outcome("draws", **parts)
    assert result.passed and result.figures["p_value"] > 1e-3, str(result)
    assert ("in place of" in result.note) == (parts.get("sampling") == Greedy())


@pytest.mark.slow
def test_a_thousand_honest_runs_of_draws_raise_no_alarm(monkeypatch):
    """The declared rate of `FALSE_ALARM` is a bound: of a thousand runs none comes near it."""
    monkeypatch.setattr(drawn, "jax", SimpleNamespace(jit=lru_cache(jax.jit)))  # traced once
    monkeypatch.setattr(drawn, "functools", SimpleNamespace(partial=lru_cache(partial)))
    subject, p_values = fresh(), []
    programs = subject._programs
    for seed in range(1000):
        again = dataclasses.replace(subject, seed=seed)
        again.__dict__["_programs"] = programs
        p_values.append(drawn.draws(again).figures["p_value"])
    print(f"the lowest of {len(p_values)} bounds is {min(p_values):.2g}")
    assert min(p_values) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True], ids=["law", "broken"])
def test_a_thousand_honest_runs_of_the_law_raise_no_alarm(broken):
    """Chi-square tests of an enumerated distribution, each of other keys."""
    bench = Bench.create(rows=5_000)
    bench, sampling = bench.broken() if broken else bench, Sampling()
    plan = bench.plan(SpeculativeSampling(), Fixed(3), sampling)
    run = jax.jit(lambda keys, inputs: decode(bench.params, keys, inputs, plan).tokens)
    found = [
        bench.compare(run(*bench.given(plan, bench.rows, i * bench.rows)), sampling)
        for i in range(1000)
    ]
    p_values = [result.p_value for result in found]
    print(f"the lowest of {len(p_values)} probabilities is {min(p_values):.2g}")
    assert min(p_values) > 1e-6 and not any(result.impossible for result in found)
    assert 0.45 < np.mean(p_values) < 0.55  # uniform: the mean is off by 0.009


LYING = Constant(3, claimed=1 / 6)  # says that it draws its one token from all


@pytest.mark.planted
def test_draws_sees_a_drafter_that_lies():
    result = outcome("draws", drafter=LYING, sampling=Sampling())
    assert not result.passed and result.figures["p_value"] < 1e-12, str(result)  # no chance


@pytest.mark.slow
@pytest.mark.planted
def test_nothing_else_sees_a_drafter_without_a_model_that_lies():
    """Its q is its own word: `perfect` has the target in its place, `law` a table model."""
    for check in ("algebra", "greedy", "seeds", "perfect", "audit"):
        assert outcome(check, drafter=LYING, sampling=Sampling()).passed, check


@pytest.mark.slow
def test_a_verifier_that_shares_noise():
    result = outcome("perfect", verifier=Coupled())
    assert result.passed and result.figures["rejections"] == 0, str(result)


def test_a_drafter_without_a_model_and_one_around_another():
    """The target drafts for itself as `Autoregressive`, or within the drafter's own class."""
    copier = fresh(drafter=Constant(3)).itself(Greedy())
    assert copier[0].drafter == Autoregressive(BENCH.target, Greedy())
    own = Skipping(Autoregressive(TableTarget(6), Sampling()))
    plan, params = fresh(drafter=own).itself(Greedy())
    assert isinstance(plan.drafter, Skipping) and plan.models()["draft"] == BENCH.target
    assert copier[1]["draft"] is params["draft"] is BENCH.params["target"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heads", "masks"])
def test_a_drafter_of_blocks(kind):
    """A target fills in no blocks, so it drafts for itself as any other; with models of its own the
    drafter has its state compared."""
    model = StatesTable(6 + 3, classes=3) if kind == "masks" else TableHeads(6, heads=3)
    drafter = (
        Masked(model, Sampling(), masks=3) if kind == "masks" else Blockwise(model, Sampling())
    )
    params = BENCH.params | {"draft": model.init(jax.random.key(3))}
    subject = dataclasses.replace(fresh(drafter=drafter, schedule=Fixed(3)), params=params)
    for check in (exactness.perfect, exactness.greedy, certificate.afresh):
        assert (result := check(subject)).passed, str(result)
        if check is exactness.perfect:
            assert result.figures["accepted"] == result.figures["drafted"] > 100


@pytest.mark.slow
def test_over_a_mesh_it_is_the_same():
    mesh = partitioning.make_mesh(1, jax.devices()[:2])
    params = jax.device_put(BENCH.params, partitioning.whole(mesh))
    subject = dataclasses.replace(fresh(), params=params, mesh=mesh)
    with jax.set_mesh(mesh):
        for check in (certificate.exactness.greedy, certificate.exactness.audit):
            assert check(subject).passed
    for ours, theirs in zip(subject.speculated, TABLE.speculated, strict=True):
        jax.tree.map(np.testing.assert_allclose, ours, theirs)


@dataclasses.dataclass(frozen=True)
class Unsaid(TableTarget):
    """What says of itself that it skips something."""

    exact = False


@pytest.mark.parametrize(
    "parts, message",
    [
        ({"target": Unsaid(6, classes=3)}, "the target Unsaid does not state that it is exact"),
        ({"drafter": None}, "the plan drafts nothing"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_runs(monkeypatch, parts, message):
    monkeypatch.setattr(Subject, "decode", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=message) as refusal:
        certificate.certify(fresh(**parts))
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ("--gin_file=verifiers/top_beta.gin", "--gin.BETA=4", "--gin.TAU=9.0"), id="greedy"
        ),
        pytest.param(
            ("--gin_file=sampling/temperature.gin", "--gin_file=verifiers/typical.gin"), id="drawn"
        ),
    ],
)
def test_what_is_lossy_says_by_how_much_and_passes_only_if_it_is_meant(verify, monkeypatch, flags):
    monkeypatch.setattr(certificate, "CHECKS", (certificate.CHECKS[0],))
    code, record, out, _ = verify(*flags)
    assert code == 1 and not record["passed"] and record["exact"] is False
    assert out.startswith("NOT EXACT: ") and "the checks of exactness use" in out
    assert "FAIL divergence" in out and "LOSSY = True" in out
    assert out.splitlines()[-1].startswith("NOT CERTIFIED: divergence failed")
    code, record, again, _ = verify(*flags, "--gin.LOSSY=True")
    assert code == 0 and record["passed"]
    assert "PASS divergence" in again and again.splitlines()[-1].startswith("LOSSY: the verifier")
    figures = record["checks"][-1]["figures"]
    assert 0 < figures["low"] <= figures.get("share", figures.get("distance")) <= figures["high"]
    for word in ("identical", "in distribution", "CERTIFIED:"):
        assert word not in again


@pytest.mark.slow
def test_no_divergence_is_measured_where_there_is_none():
    """Exact verifiers under another name: no token differs, and drawn ones by chance only."""

    @dataclasses.dataclass(frozen=True)
    class Modest(SpeculativeSampling):
        exact = False

    greedy = fresh(verifier=Lenient(1.0), sampling=Greedy())
    check = certificate.divergence(greedy, lossy=True)
    assert check.figures["share"] == 0 and check.figures["same"] == check.figures["texts"]
    check = certificate.divergence(fresh(verifier=Modest()), lossy=True)
    blind = MinimumBlock(SpeculativeSampling(), 3)
    far = certificate.divergence(fresh(verifier=blind), lossy=True)
    assert check.figures["distance"] < far.figures["low"], f"{check}\n{far}"


@pytest.mark.planted
def test_a_lossy_verifier_that_says_it_is_exact():
    @dataclasses.dataclass(frozen=True)
    class Liar(Typical):
        exact = True

    assert not outcome("algebra", verifier=Liar(), sampling=Sampling()).passed


HYBRID = Hybrid(PromptLookup(shortest=2), Autoregressive(TableTarget(6, classes=3), Sampling()))


@pytest.mark.parametrize(
    "drafter, stop_ids",
    [pytest.param(HYBRID, (1,), marks=pytest.mark.ci), (InputCopy(), (2,))],
    ids=["hybrid", "copy"],
)
def test_what_a_drafter_remembers_is_what_the_text_says(drafter, stop_ids):
    check = outcome("afresh", drafter=drafter, stop_ids=stop_ids)
    assert check.passed and check.figures["different"] == 0, str(check)
    assert check.figures["drafts"] > 50
    if stop_ids == (2,):
        # Of ten texts four end with their fourth token; the last call of others has no room.
        assert check.figures["drafts"] == 4 * 4 + 6 * 8


@pytest.mark.slow
@pytest.mark.planted
def test_a_drafter_that_has_lost_something(plant):
    """A cache with a hole, and one with tokens that somebody else's draft replaced; the texts are
    right all the same."""

    check = outcome("perfect", inputs=np.tile(TABLE.inputs, (8, 1)))
    assert check.passed, str(check)
    catch_up = Autoregressive._catch_up
    plant(Autoregressive, "_catch_up", first_kept)
    check = outcome("perfect", inputs=np.tile(TABLE.inputs, (8, 1)))
    assert not check.passed and "drafts cut short" in check.note
    check = outcome("afresh", drafter=HYBRID)
    assert not check.passed and "differ from those of a state made anew" in check.note
    plant(Autoregressive, "_catch_up", catch_up)
    plant(Memory, "known", lambda self, context: self.cache)  # refused tokens too
    assert not outcome("afresh", drafter=HYBRID).passed
    assert outcome("greedy", drafter=HYBRID).passed


def test_a_drafter_that_adapts_has_nothing_to_compare():
    @dataclasses.dataclass(frozen=True)
    class Adapting(PromptLookup):
        adapts = True

    check = outcome("afresh", drafter=Adapting())
    assert check.passed and "adapts" in check.note and check.figures["drafts"] == 0


@pytest.mark.slow
@pytest.mark.planted
def test_a_hostile_drafter_that_gets_through(plant):
    real = states.trim

    def lets_through(draft, want, size, stops):
        return real(draft.replace(probs=None), want, 10**6, stops).replace(probs=draft.probs)

    plant(states, "trim", lets_through)
    plant(SpeculativeSampling, "accept", lambda self, draft, scores: (draft.tokens > 6) * 1.0)
    check = outcome("hostile")
    assert not check.passed
    failed = {name for name, case in check.figures["cases"].items() if not case["passed"]}
    assert failed == {"id beyond the vocabulary, greedy"}


@pytest.mark.slow
@pytest.mark.planted
def test_a_wrong_law(plant):
    def reused(*args, real=keys.noise, **options):
        noise = real(*args, **options)
        return Noise(noise.draft, noise.accept, noise.correct.at[:-1].set(noise.draft))

    plant(loop, "noise", reused)
    assert not outcome("law").passed


def residual_of_p(self, draft, scores, n):
    return scores.probs[n]


def no_rewind(self, length):
    return self.replace(length=jnp.maximum(self.length, length))


def keys_by_place_in_the_block(of_row, committed, *, width, shared, real=keys.noise):
    place = jnp.zeros_like(committed) if shared else committed
    return real(of_row, place, width=width, shared=shared)


def other_probs(self, *args, real=Autoregressive.propose):
    draft, state = real(self, *args)
    if draft.probs is None:
        return draft, state
    other = draft.probs**0.5
    return draft.replace(probs=other / jnp.sum(other, axis=-1, keepdims=True)), state


def loses(state, draft, scored, verdict, *others, real=states.commit):
    after = real(state, draft, scored, verdict, *others)
    lost = (verdict.num_accepted > 0) & (after.length > state.length + 1)
    return after.replace(length=after.length - lost, active=after.active | state.active & lost)


def accept_all(self, draft, scores):
    return jnp.ones(draft.tokens.shape, scores.probs.dtype)


def accept_less(self, draft, scores, real=SpeculativeSampling.accept):
    return 0.995 * real(self, draft, scores)


def first_kept(self, params, context, cache, until, width):
    return cache.rewind(until)


def late(buffer, block, start, count, real=states._append):
    return real(buffer, block, start, count) * (1.01 if buffer.dtype == jnp.float32 else 1)


def the_draft_key_again(*args, real=keys.noise, **options):
    noise = real(*args, **options)
    return Noise(noise.draft, noise.accept, noise.correct.at[:-1].set(noise.draft))


def the_accept_key_of_the_draft(*args, real=keys.noise, **options):
    noise = real(*args, **options)
    return noise._replace(accept=noise.draft)


def without_samples(seed, examples, samples=0, real=keys.row_keys):
    return real(seed, examples)


def where_the_first_row_is(array, block, start, *place, real=cache_module.write_rows):
    few = array.shape[0] <= cache_module.ONE_BY_ONE
    return real(array, block, jnp.full_like(start, start[0]) if few else start, *place)


def rows_that_are(test):
    return lambda draft: (
        jnp.ones(draft.tokens.shape, bool) if draft.probs is None else test(draft.probs)
    )


# Of each check: what is planted, where, and with which parts of a plan or inputs. The table of
# docs/reference/mistakes.md has these rows.
SEEN = {
    ("algebra", "the correction is drawn from p"): (SpeculativeSampling, "residual", residual_of_p),
    ("algebra", "everything is accepted"): (SpeculativeSampling, "accept", accept_all),
    ("proposal", "the drafter reports the root of its q"): (
        Autoregressive,
        "propose",
        other_probs,
    ),
    ("greedy", "rejected tokens stay in the cache"): (KVCache, "rewind", no_rewind),
    ("seeds", "keys by the place in a block"): (loop, "noise", keys_by_place_in_the_block),
    ("perfect", "q is not what was drawn from"): (Autoregressive, "propose", other_probs),
    ("perfect", "one draft token in 200 is refused"): (SpeculativeSampling, "accept", accept_less),
    ("afresh", "a hole in the drafter's cache"): (Autoregressive, "_catch_up", first_kept),
    ("hostile", "a call loses a token"): (states, "commit", loses),
    ("audit", "log-probabilities off by 1 %"): (states, "_append", late),
    ("draws", "everything is accepted"): (SpeculativeSampling, "accept", accept_all),
    ("law", "the correction's noise is the draft's"): (loop, "noise", the_draft_key_again),
    ("law", "the coin's noise is the draft's"): (loop, "noise", the_accept_key_of_the_draft),
    ("law", "all samples of a text are one"): (bench_checks, "row_keys", without_samples),
    ("law", "rows are written where the first one is"): (
        cache_module,
        "write_rows",
        where_the_first_row_is,
    ),
    **{
        ("broken", name): (states, "usable_tokens", rows_that_are(test))
        for name, test in {
            "drafts go on whatever q is": lambda q: jnp.ones(q.shape[:-1], bool),
            "drafts go on unless q is NaN": lambda q: ~jnp.any(jnp.isnan(q), axis=-1),
            "drafts go on if q is finite": lambda q: jnp.all(jnp.isfinite(q), axis=-1),
            "drafts go on if q is negative": lambda q: jnp.abs(jnp.sum(q, axis=-1) - 1) < 1e-4,
            "drafts go on whatever the sum of q is": lambda q: jnp.min(q, axis=-1) >= 0,
            "drafts go on if the sum of q is 1.01": lambda q: (
                (jnp.abs(jnp.sum(q, axis=-1) - 1) < 0.1) & (jnp.min(q, axis=-1) >= 0)
            ),
        }.items()
    },
}
PARTS: dict[str, dict[str, Any]] = {  # where the check needs other parts, or more texts
    "perfect": {"inputs": np.tile(TABLE.inputs, (40, 1))},
    "afresh": {"drafter": Autoregressive(BENCH.target, Sampling())},
    "broken": {"verifier": Block()},
    "draws": {"sampling": Sampling()},
}


# Those that run where planted bugs do; the others are slow.
OFTEN = [
    ("algebra", "the correction is drawn from p"),
    ("afresh", "a hole in the drafter's cache"),
    ("hostile", "a call loses a token"),
    ("draws", "everything is accepted"),
]


@pytest.mark.planted
@pytest.mark.parametrize(
    "case", few(dict.fromkeys([*OFTEN, *SEEN]), len(OFTEN)), ids=lambda case: ": ".join(case)
)
def test_each_check_sees_what_it_is_there_to_see(case, plant):
    check, bug = case
    plant(exactness, "LAW_ROWS", 100_000)
    plant(*SEEN[check, bug])
    result = outcome(check, **PARTS.get(check, {}))
    assert not result.passed, str(result)


@pytest.mark.planted
@pytest.mark.parametrize("check", few(CHECKS, 3))
def test_each_check_passes_where_nothing_is_planted(check):
    result = outcome(check, **PARTS.get(check, {}))
    assert result.passed, str(result)


def test_the_table_of_planted_bugs_has_every_check():
    assert [*dict.fromkeys(check for check, _ in SEEN)] == CHECKS
    page = (Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md").read_text()
    table = page.split("## What the certificate sees")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| yes \|$", table, re.MULTILINE)
    assert rows == list(SEEN)


def test_gaps_are_those_of_the_target():
    subject = fresh()
    target, params = subject.plan.target, subject.params["target"]
    plain = subject.plain(Greedy()).tokens[0]
    other = np.array(plain)
    other[0] = (plain[0] + 1) % 6
    start = target.start(subject.inputs[:1])[:, None]
    logits = teacher_forced(target, params, subject.inputs[:1], start)[0, 0]
    gap = float(logits[plain[0]] - logits[other[0]])
    assert subject.gap(0, other, plain, Greedy()) == pytest.approx(gap, rel=1e-5)
