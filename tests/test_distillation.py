"""The inputs, the steps and the outcome of a distillation: pytest tests/test_distillation.py"""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from specdec import certificate, checkpoints
from specdec.certificate import Check, certifying
from specdec.common.records import Lines, RecordsError
from specdec.common.statistics import Estimate
from specdec.common.values import UsageError
from specdec.sampling import Sampling, SuppressTokens, with_processors
from specdec.schedules import Fixed
from specdec.training.distillation import distillation
from specdec.training.distillation.distillation import Distilling
from specdec.training.distillation.distillation_inputs import Inputs, chosen_prefix

KNOWN = {"translation": "translate: ", "summarization": "summarize: "}
STEPS = ("write", "learn", "tune", "certify")
CONFIG = {"task_specific_params": {name: {"prefix": text} for name, text in KNOWN.items()}}


def test_inputs_are_read_once():
    texts = ["a", "", "a", "  ", *(f"text {i}" for i in range(99))]
    inputs = Inputs.of(texts, "FILE")
    assert "a" in inputs.all and len(inputs.all) == len(set(inputs.all)) == 100
    assert len(inputs.held_out) == 20 and not set(inputs.train) & set(inputs.held_out)


@pytest.mark.parametrize("count, held_out", [(40, 20), (60, 20), (300, 60), (10_000, 200)])
def test_enough_is_held_out_and_not_too_much(count, held_out):
    assert len(Inputs.of(map(str, range(count)), "FILE").held_out) == held_out


@pytest.mark.parametrize("count, steps", [(40, 100), (300, 300), (100_000, 2000)])
def test_more_inputs_take_more_steps(count, steps):
    assert Inputs.of(map(str, range(count)), "FILE").steps() == steps


def test_an_input_of_two_lines_is_refused():
    with pytest.raises(UsageError, match=r"inputs has 'a\\nb', with a line break; give texts of"):
        Inputs.of([*map(str, range(50)), "a\nb"], "inputs")


def test_too_few_inputs_are_refused():
    with pytest.raises(UsageError, match="FILE has 39 different inputs; give at least 40, of"):
        Inputs.of(map(str, range(39)), "FILE")


def test_a_folder_keeps_the_inputs_that_it_was_begun_with(tmp_path):
    checkpoint = tmp_path / "t5"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps({"model_type": "t5", **CONFIG}))
    (checkpoint / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    (checkpoint / "model.safetensors").touch()
    folder = tmp_path / "new" / "out"

    def described(count, prefix):
        inputs = Inputs.of(map(str, range(count)), "FILE")
        return inputs.described(str(checkpoint), folder, prefix, None, None)

    described(50, "wrong: ")
    assert (folder / ".distill.json.lock").is_file(), "no other process may write"
    with pytest.raises(UsageError, match="give --task_prefix"):
        described(50, None)
    path = described(60, "translate: ")  # nothing was written with the first ones
    (folder / "texts" / "train").mkdir(parents=True)
    assert described(60, None) == path  # the prefix of the folder
    assert "TASK_PREFIX = 'translate: '" in open(path).read()
    with pytest.raises(RecordsError, match="begun with TASK_PREFIX = 'translate: ', and now"):
        described(60, "")
    with pytest.raises(RecordsError, match="begun with fingerprint of inputs"):
        described(61, None)


def test_config_names_the_prefixes(tmp_path):
    record = {"task_specific_params": {**CONFIG["task_specific_params"], "odd": 3, "none": {}}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **record}))
    (tmp_path / "model.safetensors").touch()
    assert checkpoints.text_model_from(tmp_path, needed=False).prefixes == KNOWN


def test_a_prefix_that_config_names_is_not_left_out_in_silence():
    assert chosen_prefix(["translate: a", "summarize: b"], KNOWN, None, "DIR") == ""
    assert chosen_prefix(["a", "b"], {}, None, "DIR") == ""
    with pytest.raises(UsageError, match=r"'translate: ', 'summarize: '.*--task_prefix='' for no"):
        chosen_prefix(["translate: a", "b"], KNOWN, None, "DIR")


@pytest.mark.parametrize("answer, prefix", [("2", "summarize: "), ("", ""), ("ask: ", "ask: ")])
def test_a_terminal_is_asked_for_the_prefix(answer, prefix):
    questions = []

    def ask(question):
        questions.append(question)
        return answer

    assert chosen_prefix(["a"], KNOWN, ask, "DIR") == prefix
    assert "1: 'translate: '" in questions[0] and "Enter for none" in questions[0]


@pytest.mark.parametrize("pays", [True, False])
def test_the_pair_drafts_only_where_that_pays(tmp_path, monkeypatch, pays):
    """`tuned.gin` says how long to draft, or that nothing drafts; the drafter is certified."""
    speedup = Estimate(1 + pays / 2, 1, 2)
    schedule = SimpleNamespace(candidate=SimpleNamespace(schedule=Fixed(5)))
    best = SimpleNamespace(best=schedule, speedup=lambda _: speedup)
    found = SimpleNamespace(pays=pays, best=best, lines=lambda: [], write=lambda *_: "")
    search = SimpleNamespace(run=lambda: found)
    monkeypatch.setattr(distillation.Search, "of", lambda *_: search)
    monkeypatch.setattr(certifying, "certify", lambda variant, *_: variant)
    for name, outcome in {"_asked": "", "_expected": dict.fromkeys(STEPS, 1.0)}.items():
        monkeypatch.setattr(Distilling, name, lambda _, outcome=outcome: outcome)
    for name in ("_write", "_train"):
        monkeypatch.setattr(Distilling, name, lambda *_: None)
    settings = SimpleNamespace(
        files=["run.gin"],
        run=lambda more, files=(), **_: list(files),
        text=lambda more, files: f"{more} {files}",
    )
    recipe = SimpleNamespace(texts="train", held_out="validation")
    nothing: Any = None
    given: Any = settings
    one = Distilling(given, recipe, nothing, nothing, nothing, tmp_path)  # type: ignore
    said: list[str] = []
    made = one.distill(said.append, said.append)
    tuned = str(tmp_path / "tuned/tuned.gin")
    assert made.pays == pays and tuned in made.pair.read_text()
    assert made.certificate == [tuned] * pays
    assert [line.split(":")[0] for line in said if "step" in line] == [
        f"\nstep {number} of 4" for number in (1, 2, 3, 4)
    ]


@pytest.fixture
def subject(monkeypatch):
    """A subject of two checks, of which the second one fails the first time."""
    ran: list[str] = []

    def sound(_):
        ran.append("sound")
        return Check("sound", {"n": 1}, {"n": ("<=", 2)}, "fine")

    def shaky(_):
        ran.append("shaky")
        return Check("shaky", {"n": 3 - ran.count("shaky")}, {"n": ("<=", 1)}, "so so")

    monkeypatch.setattr(certificate, "CHECKS", (sound, shaky))
    exact = SimpleNamespace(exact=True)
    parts = {"target": exact, "drafter": SimpleNamespace(paths=0), "verifier": exact}
    plan = SimpleNamespace(drafts=True, same_bits=False, **parts)
    return SimpleNamespace(plan=plan, clock=lambda: 0.0, ran=ran)


def test_checks_that_passed_are_not_run_again(subject, tmp_path, monkeypatch):
    lines, announced = Lines(tmp_path / "checks.jsonl"), []
    for _ in range(2):
        known = certifying.known_checks(lines)
        for check in certificate.certify(subject, announced.append, known=known):
            certifying.keep(lines, check, known)
    assert subject.ran == announced == ["sound", "shaky", "shaky"]
    assert certifying.known_checks(lines)["sound"].passed
    monkeypatch.setattr(certifying, "hardware", lambda: {"device": "another"})
    assert certifying.known_checks(lines) == {}


def test_a_draft_learns_at_the_temperature_below_the_processors():
    """A Chronos checkpoint suppresses its end, so its rule is a processed one."""
    sampling = with_processors(Sampling(0.7), (SuppressTokens((1,)),))
    run: Any = SimpleNamespace(plan=SimpleNamespace(sampling=sampling))
    recipe: Any = SimpleNamespace(divergences={"jensen_shannon": 1.0}, top=None)
    assert distillation._objective(run, recipe).temperature == 0.7
