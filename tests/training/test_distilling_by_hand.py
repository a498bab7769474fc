"""The steps of `specdec distill`, of parts that do nothing: pytest tests/training"""

from __future__ import annotations

import dataclasses
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from specdec.common.records import RecordsError
from specdec.common.statistics import Estimate
from specdec.common.values import UsageError
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import Greedy, Sampling
from specdec.training.distillation import distillation
from specdec.training.distillation.distillation import (
    Distillation,
    Distilled,
    Distilling,
    TimeLeft,
)

RECIPE = Distillation("train", "validation", 1, None, 100, 16, 0.1, {"forward_kl": 1.0})
CONFIG = T5Config(
    vocab_size=40,
    emb_dim=8,
    num_heads=2,
    head_dim=4,
    mlp_dim=12,
    num_encoder_layers=1,
    num_decoder_layers=3,
)


def run_of(**more: Any) -> Any:
    data = {"task": "task", "split": "test", "limit": None, "seed": 5, "lengths": {"inputs": 30}}
    plan = SimpleNamespace(target=T5Target(CONFIG), sampling=more.pop("sampling", Greedy()))
    return SimpleNamespace(
        plan=plan,
        data=SimpleNamespace(**data | more),
        placement=SimpleNamespace(mesh=None, share=lambda: SHARE),
        lengths={"inputs": 30, "targets": 15},
        checkpoint_path="a path",
    )


class Share(tuple):
    first = True


SHARE = Share((0, 2, "rest"))


@pytest.fixture
def known(monkeypatch) -> dict:
    """The splits of the task, and how many texts they have."""
    counts = {"train": 1000, "validation": 50, "test": 7}
    monkeypatch.setattr(
        distillation.tasks, "get_task", lambda name: SimpleNamespace(splits=counts, name=name)
    )
    monkeypatch.setattr(distillation.tasks, "count", lambda task, split: counts[split])
    return counts


def made(tmp_path, recipe: Distillation = RECIPE, settings: Any = None, **more: Any) -> Distilling:
    variant: Any = SimpleNamespace(run=run_of(**more), settings="A = 1\n")
    nothing: Any = None
    return Distilling.of(settings, recipe, variant, nothing, tmp_path / "out")


def test_a_folder_is_of_one_recipe(tmp_path, known):
    """It goes on with this one. Texts without a recipe are of something else."""
    first = made(tmp_path)
    assert first.folder == tmp_path / "out" and first.recipe == RECIPE
    claimed = json.loads((tmp_path / "out" / "distill.json").read_text())
    assert claimed == {"gin": "A = 1\n", **dataclasses.asdict(RECIPE)}
    assert made(tmp_path).recipe == RECIPE
    with pytest.raises(RecordsError, match="was begun with steps = 100, and now it is 200"):
        made(tmp_path, dataclasses.replace(RECIPE, steps=200))
    (tmp_path / "out" / "distill.json").unlink()
    (tmp_path / "out" / "texts" / "train").mkdir(parents=True)
    with pytest.raises(RecordsError, match="texts/train has no distill.json next to it"):
        made(tmp_path)


@pytest.mark.parametrize(
    "recipe, more, says",
    [
        ({"layers": 4}, {}, "DRAFT_LAYERS is 4 but the target has 3; give fewer"),
        ({"top": 40}, {}, "DRAFT_TOP is 40 and the target has 40 ids; give fewer"),
        ({}, {"task": None}, "there is no task; set TASK"),
        ({"texts": "other"}, {}, "no split 'other'; give one of train, validation, test"),
        ({"held_out": "other"}, {}, "no split 'other'"),
        ({}, {"split": "other"}, "no split 'other'"),
        ({"held_out": "train"}, {}, "TEXTS and HELD_OUT are both 'train'"),
    ],
)
def test_what_would_fail_later_is_refused(tmp_path, known, recipe, more, says):
    with pytest.raises(UsageError, match=says):
        made(tmp_path, dataclasses.replace(RECIPE, **recipe), **more)
    allowed = dataclasses.replace(RECIPE, layers=3, top=39)
    distillation._check(run_of(), allowed)


@pytest.mark.parametrize(
    "sampling, temperature", [(Greedy(), 1.0), (Sampling(0.5), 0.5), (Sampling(1.0, top_k=3), 1.0)]
)
def test_the_objective_has_the_temperature_of_the_run(sampling, temperature):
    found = distillation._objective(run_of(sampling=sampling), RECIPE)
    assert (found.divergences, found.temperature, found.top) == (
        (("forward_kl", (1.0, 1.0)),),
        temperature,
        None,
    )


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_the_target_writes_on_each_host(tmp_path, known, monkeypatch, alone, first):
    """One that feeds rows holds its files; no host goes on before all have written."""
    asked: list = []

    class Folder:
        def __init__(self, *given):
            asked.append(given)

        def hold(self, alone):
            asked.append(("holds", alone))

    class Settings:
        def run(self, more, **how):
            asked.append((more, how))
            return SimpleNamespace(run=run_of(), settings="settings")

    evaluation = SimpleNamespace(write=lambda folder: asked.append("written"))
    without = lambda one: asked.append(one.settings) or evaluation  # noqa: E731
    monkeypatch.setattr(distillation.Evaluation, "without_metrics", without)
    monkeypatch.setattr(distillation, "PredictionsFolder", Folder)
    monkeypatch.setattr(distillation.jax, "process_count", lambda: 1 if alone else 2)
    monkeypatch.setattr(Share, "first", first)
    one = made(tmp_path, settings=Settings())._replace() if alone else None
    if one is None:  # several hosts need a mesh
        nothing: Any = None
        one = Distilling(Settings(), RECIPE, nothing, nothing, nothing, tmp_path / "out")  # type: ignore
    monkeypatch.setattr(distillation.hosts, "exchanged", lambda own: asked.append("all"))
    one._write("train")
    assert asked == [
        ({"DRAFTER": None, "SPLIT": "train", "BATCH_SIZE": 16}, {"lines": "eval"}),
        "settings",
        (str(tmp_path / "out" / "texts" / "train"), "settings", (0, 2)),
        *([("holds", alone)] if first else []),
        "written",
        "all",
    ]


def test_hosts_without_a_mesh_make_no_drafter(monkeypatch, known):
    monkeypatch.setattr(distillation.jax, "process_count", lambda: 2)
    run = run_of()
    with pytest.raises(UsageError, match="--distributed makes one drafter .* give --gin.NUM_PART"):
        distillation._check(run, RECIPE)
    run.placement.mesh = "a mesh"
    distillation._check(run, RECIPE)


def test_the_drafter_has_the_first_layers_and_the_targets_encoder(tmp_path, known):
    one = made(tmp_path, dataclasses.replace(RECIPE, layers=2))
    target: Any = T5Target(CONFIG)
    config = one._model(target, (1, 5)).config
    assert (config.num_decoder_layers, config.num_encoder_layers) == (2, 0)
    assert (config.encoded_dim, config.head_ids) == (8, (1, 5))
    assert one._model(target).config.head_ids is None


@pytest.mark.parametrize("limit, counts", [(None, (1000, 50)), (40, (40, 40))])
def test_the_expected_seconds_of_each_step(tmp_path, known, limit, counts):
    """Of 15 tokens a text, and two operations for each parameter and token."""
    one = made(tmp_path, limit=limit)
    from specdec import checkpoints

    target: Any = T5Target(CONFIG)
    size = checkpoints.parameter_count(target)
    drafter = checkpoints.parameter_count(one._model(target))
    texts, held_out = counts
    seconds = {
        "write": 10 + (texts + held_out) * 15 * 2 * size / 1e11,
        "learn": 30 + (100 * 16 + 8 * held_out) * 15 * (2 * size + 6 * drafter) / 1e11,
        "tune": 60 + held_out * 15 * 2 * size / 1e11,
        "certify": 120 + 64 * 15 * 40 * size / 1e11,
    }
    assert one._expected() == pytest.approx(seconds, rel=1e-12)
    assert list(one._expected()) == ["write", "learn", "tune", "certify"]
    (one.folder / "texts" / "validation").mkdir(parents=True)
    (one.folder / "texts" / "validation" / "metrics.json").touch()
    (one.folder / "tuned").mkdir()
    done = {"write": 0.0, "learn": 0.0}
    assert one._expected() == pytest.approx(seconds | done, rel=1e-12)
    (one.folder / "pair.gin").touch()
    assert one._expected()["tune"] == 0.0


def test_the_time_that_is_left():
    """Corrected by how long the steps before have taken: twice as long as expected."""
    now = [0.0]
    left = TimeLeft({"a": 600.0, "b": 30.0, "c": 3600.0}, lambda: now[0])
    assert left.begin("a", "one") == "\nstep 1 of 3: one, about 70 minutes left"
    now[0] = 1200.0
    assert left.begin("b", "two") == "\nstep 2 of 3: two, about 121 minutes left".replace(
        "121 minutes", "2 hours"
    )
    now[0] = 630.0
    assert left.begin("c", "three") == "\nstep 3 of 3: three, about 60 minutes left"
    short = TimeLeft({"a": 0.0, "b": 20.0}, lambda: now[0])
    assert short.begin("b", "x") == "\nstep 2 of 2: x, about 1 minute left"
    assert TimeLeft({"a": 7190.0}, lambda: 0.0).begin("a", "x").endswith("about 2 hours left")
    assert TimeLeft({"a": 7140.0}, lambda: 0.0).begin("a", "x").endswith("about 119 minutes left")


@pytest.mark.parametrize("prefixes, line", [({}, ""), ({"x": "a"}, ""), ({"x": "b"}, " ('b')")])
def test_the_first_input_is_shown_with_the_prefix_that_it_lacks(
    tmp_path, known, monkeypatch, prefixes, line
):
    one = made(tmp_path)
    texts = SimpleNamespace(prefixes=prefixes)
    monkeypatch.setattr(
        distillation.checkpoints,
        "text_model_from",
        lambda path, needed: texts if not needed else None,
    )
    run: Any = one.variant.run
    run.batches = lambda everywhere: iter([SimpleNamespace(input_texts=["a text"])] * everywhere)
    found = one._asked()
    assert found.startswith("the target's first input: 'a text'")
    said = f"; it has no prefix of config.json{line}" if line else ""
    assert found.removeprefix("the target's first input: 'a text'") == said
    run.batches = lambda everywhere: iter(())
    with pytest.raises(UsageError, match="split 'test' has no examples"):
        one._asked()


@pytest.mark.parametrize("pays", [True, False])
def test_a_drafter_is_tuned_and_certified(tmp_path, known, monkeypatch, pays):
    """One that does not pay is certified as the user set it."""
    asked: list = []

    class Settings:
        files = ["mine.gin"]

        def run(self, more, **how):
            asked.append(("run", more, how))
            return f"run {len(asked)}"

        def text(self, more, files):
            asked.append(("text", more, files))
            return "the pair\n"

    best = SimpleNamespace(candidate=SimpleNamespace(schedule="Fixed(3)"))
    speedup = Estimate(1.5 if pays else 0.5, 0.4, 1.75)
    result = SimpleNamespace(best=best, speedup=lambda one: speedup if one is best else None)
    found = SimpleNamespace(
        pays=pays,
        best=result,
        lines=lambda: ["tuned", "well"],
        write=lambda folder, files: asked.append(("write", folder, files)),
    )
    search = SimpleNamespace(run=lambda: found)
    of = lambda runs, folder: asked.append(("of", runs, folder)) or search  # noqa: E731
    monkeypatch.setattr(distillation.Search, "of", of)
    certify = lambda *given: asked.append(("certify", *given)) or "certificate"  # noqa: E731
    monkeypatch.setattr(distillation.certifying, "certify", certify)
    one, said = made(tmp_path, settings=Settings()), []
    own, folder = tmp_path / "own", tmp_path / "out"
    own.mkdir()
    steps: Any = SimpleNamespace(begin=lambda name, about: f"{name}: {about}")
    made_pair = one._tried(own, steps, said.append, print)
    draft = folder / "draft" / "export"
    drafter = {"DRAFT_CHECKPOINT_PATH": os.path.abspath(draft)}
    tuned = [str(own / "tuned" / "tuned.gin")]
    assert asked == [
        ("run", {**drafter, "SPLIT": "validation"}, {"lines": "acceptance"}),
        ("of", ["run 1"], own / "tuned"),
        ("write", own / "tuned", ["mine.gin"]),
        ("text", drafter, tuned),
        ("run", drafter, {"files": tuned if pays else [], "limit": 64}),
        ("certify", "run 5", said.append, print, own / "checks.jsonl"),
    ]
    assert said[:2] == ["tune: how long to draft", "tuned\nwell"] and len(said) == 3
    why = " of the drafter, for machines on which it pays (the pair is written: Ctrl-C "
    why += "leaves it out)"
    assert said[2] == "certify: the certificate" + ("" if pays else why)
    assert (own / "pair.gin").read_text() == "the pair\n"
    pair = folder / "pair.gin"
    assert made_pair == Distilled(draft, pair, speedup, "Fixed(3)", "certificate")  # type: ignore
    assert made_pair.pays == pays
    command = f"specdec decode --gin_file={pair}"
    if pays:
        words = "Drafting with Fixed(3) is predicted to be 1.50 times as fast as the target alone"
        assert made_pair.summary() == f"{words} (95 % interval 0.40 to 1.75): {command}"
    else:
        assert made_pair.summary() == (
            "The target alone is faster on this machine (the best draft is 0.50 times as fast, 95 "
            f"% interval 0.40 to 1.75), so this command decodes without the drafter: {command}\n"
            "For a drafter that pays, give more inputs or more --gin.DRAFT_STEPS in another "
            "--output_dir, or a larger target"
        )


@pytest.mark.parametrize("first", [True, False])
def test_later_steps_of_other_hosts_are_in_a_copy(tmp_path, monkeypatch, first):
    exchanged: list = []
    monkeypatch.setattr(distillation.hosts, "is_first", lambda: first)
    monkeypatch.setattr(distillation.hosts, "exchanged", exchanged.append)
    (tmp_path / "tuned").mkdir()
    names = ["tuned/tried.jsonl", "checks.jsonl", "checks.jsonl.gin", "pair.gin"]
    for name in names:
        (tmp_path / name).write_text(name)
    with distillation._own(tmp_path) as own:
        assert (own == tmp_path) == first and exchanged == [None]
        copied = sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())
        assert copied == sorted(names if first else names[:3])
        assert all((own / name).read_text() == name for name in copied)


@pytest.mark.parametrize("first", [True, False])
def test_the_steps_of_a_recipe(tmp_path, known, monkeypatch, first):
    """Only the first host speaks."""
    asked: list = []
    monkeypatch.setattr(distillation.hosts, "exchanged", lambda own: [own])
    monkeypatch.setattr(Distilling, "_asked", lambda self: "asked")
    monkeypatch.setattr(
        Distilling, "_expected", lambda self: dict.fromkeys(("write", "learn"), 60.0)
    )
    monkeypatch.setattr(Distilling, "_write", lambda self, split: asked.append(split))
    monkeypatch.setattr(Distilling, "_train", lambda self, say: asked.append(("train", say)))

    def tried(self, own, steps, say, started):
        asked.append((own == self.folder, say, started))
        return "pair"

    monkeypatch.setattr(Distilling, "_tried", tried)
    one, said = made(tmp_path), []
    monkeypatch.setattr(distillation.hosts, "is_first", lambda: first)
    say = said.append
    assert one.distill(say, print) == "pair"
    (_, used), (is_own, after, started) = asked[2:]
    assert asked[:2] == ["train", "validation"] and is_own == first and used == after
    assert (used == say) == (started is print) == first
    lines = [
        "asked",
        "\nstep 1 of 2: the target writes, about 2 minutes left",
        "\nstep 2 of 2: the drafter learns, about 1 minute left",
    ]
    assert said == (lines if first else [])
