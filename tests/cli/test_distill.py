"""`specdec distill`, a certified pair of a target and words: pytest tests/cli/test_distill.py"""

import json
import random

import jax
import pytest
from test_cli import the_line

from specdec import checkpoints, cli
from specdec.models.t5 import T5Config, T5Target

RUN = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks

include 'distill.gin'
include 'tasks/local.gin'

CHECKPOINT_PATH = @target/cli.path_in()
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'words'
TASK_FILES = {
    'train': @train/cli.path_in(),
    'validation': @held_out/cli.path_in(),
    'test': @held_out/cli.path_in(),
}
TASK_FEATURE_LENGTHS = {'inputs': 10, 'targets': 10}
DRAFT_STEPS = 40
DRAFT_HEAD = 300
DRAFT_BATCH_SIZE = 16
GAMMA = 3
cli.path_in.folder = 'the folder'
target/cli.path_in.name = 'target'
train/cli.path_in.name = 'train.tsv'
held_out/cli.path_in.name = 'held_out.tsv'
"""
TARGET = T5Config(
    vocab_size=384,
    emb_dim=32,
    num_heads=2,
    head_dim=16,
    mlp_dim=64,
    num_encoder_layers=1,
    num_decoder_layers=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target of random parameters, and words that it is asked."""
    folder = tmp_path_factory.mktemp("distill")
    target = T5Target(TARGET)
    checkpoints.save(folder / "target", target.init(jax.random.key(0)), config=TARGET)
    letters = random.Random(0)
    words = ["".join(letters.choices("abcd", k=letters.randint(1, 8))) for _ in range(160)]
    for name, own in {"train": words[:120], "held_out": words[120:]}.items():
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{word}\n" for word in own))
    (folder / "run.gin").write_text(RUN.replace("the folder", str(folder)))
    return folder


@pytest.fixture
def command(folder, cache, capsys):
    """Runs a command on the pair; returns the exit code, stdout and stderr."""

    def run(name, *flags, gin_file=folder / "run.gin"):
        capsys.readouterr()
        kept = f"--compilation_cache_dir={cache}"
        return cli.main([name, f"--gin_file={gin_file}", kept, *flags]), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def made(folder, cache):
    """What the command makes of a target that draws at temperature 1.5."""
    flags = "--gin_file=sampling/temperature.gin", "--temperature=1.5", "--max_length=9"
    files = f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}"
    assert cli.main(["distill", *files, *flags, f"--output_dir={folder / 'made'}"]) == 0
    return folder / "made", flags


@pytest.mark.slow
def test_a_certified_pair_comes_out(made):
    path, _ = made
    certificate = json.loads((path / "certificate.json").read_text())
    assert certificate["passed"] and certificate["exact"] and len(certificate["checks"]) == 10
    config = checkpoints.config_from(path / "draft/export")
    assert (config.num_decoder_layers, config.num_encoder_layers) == (1, 0)
    assert config.encoded_dim == TARGET.emb_dim
    log = [json.loads(line) for line in (path / "draft/log.jsonl").read_text().splitlines()]
    alphas = [one["validation_alpha"] for one in log if "validation_alpha" in one]
    assert len(alphas) == 8 and alphas[-1] > alphas[0]
    assert (path / "tuned/tried.jsonl").exists()


@pytest.mark.slow
def test_the_drafter_learns_from_what_the_target_draws(made):
    path, _ = made
    for split, texts in {"train": 120, "validation": 40}.items():
        assert len((path / f"texts/{split}/predictions.jsonl").read_text().splitlines()) == texts
    settings = json.loads((path / "draft/settings.json").read_text())
    assert settings["objective"]["temperature"] == 1.5
    assert settings["best_by"] == "mbsu_5" and settings["lengths"]["targets"] == 9
    assert "TEMPERATURE = 1.5" in (path / "texts/train/run.gin").read_text()


@pytest.mark.slow
def test_the_pair_is_what_other_commands_take(made, command):
    path, _ = made
    code, out, err = command(
        "decode", "--verifier=coupled", "--compare", gin_file=path / "pair.gin"
    )
    assert code == 0, err
    assert "identical outputs: 40 of 40" in err and "temperature=1.5" in err


@pytest.mark.slow
def test_a_finished_run_is_not_made_again(made, command):
    path, flags = made
    export = next((path / "draft/export").iterdir())
    before, made_at = (path / "draft/log.jsonl").read_text(), export.stat().st_mtime_ns
    code, out, err = command("distill", *flags, f"--output_dir={path}")
    assert code == 0 and "CERTIFIED" in out
    assert (path / "draft/log.jsonl").read_text() == before
    assert export.stat().st_mtime_ns == made_at and "holds a run of 40 steps" in err


@pytest.mark.ci
@pytest.mark.parametrize(
    "flags, line",
    [
        (["--gin.DRAFT_LAYERS=3"], "DRAFT_LAYERS is 3 but the target has 2; give fewer"),
        (["--gin.DRAFT_LAYERS=0"], "Distillation.layers is 0; give a positive integer"),
        (["--gin.DRAFT_HEAD=0"], "Distillation.head is 0; give a positive integer, or None"),
        (["--gin.DRAFT_STEPS=1"], "Distillation.steps is 1; give 2 or more, for the rate to fall"),
        (["--gin.LEARNING_RATE=0"], "Distillation.learning_rate is 0; give a positive number"),
        (["--gin.TEXTS='dev'"], "the task has no split 'dev'; give one of train, validation, test"),
        (["--gin.TEXTS='validation'"], "TEXTS and HELD_OUT are both 'validation'; give two splits"),
        (["--gin.HELD_OUT=3"], "Distillation.held_out is 3; give the name of a split"),
        (
            ["--gin.DIVERGENCES={'kl': 1}"],
            "Align.divergences has 'kl'; give some of forward_kl, reverse_kl, jensen_shannon, "
            "total_variation, total_variation_plus, log_acceptance, adaptive, greedy",
        ),
    ],
)
def test_what_cannot_be_is_said_before_any_work(command, tmp_path, flags, line):
    code, out, err = command("distill", *flags, f"--output_dir={tmp_path / 'out'}")
    assert the_line(code, out, err) == f"specdec: {line}"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused(made, command):
    path, flags = made
    code, out, err = command("distill", *flags, "--gin.DRAFT_STEPS=50", f"--output_dir={path}")
    assert "was begun with steps = 40, and now it is 50" in the_line(code, out, err)
