"""`specdec distill`, a certified pair of a target and words: pytest tests/cli/test_distill.py"""

import argparse
import dataclasses
import json
import random
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_t5, two_hosts
from yard import the_line

import specdec
from specdec import checkpoints, cli
from specdec.cli import settings
from specdec.cli.distill import Given
from specdec.cli.flags import add_flags
from specdec.cli.gin_files import Own
from specdec.models.t5 import T5Target

GOLDEN = Path(__file__).parents[1] / "golden/tokenizer/tokenizer.json"
TARGET = tiny_t5(384, 32, 64, head_dim=16, decoder=2)
PREFIX = "spell: "
SMALL = "--gin.DRAFT_STEPS=40", "--gin.DRAFT_HEAD=300", "--gin.DRAFT_BATCH_SIZE=16"
DRAWN = "--gin_file=sampling/temperature.gin", "--temperature=1.5", "--max_length=9", "--gamma=3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Targets of random parameters as transformers saves them, of bytes and with tokenizer.json
    alone, with a prefix in config.json; and words that they are asked."""
    folder = tmp_path_factory.mktemp("distill")
    wide = dataclasses.replace(TARGET, vocab_size=2176)
    for name, config, file in (("target", TARGET, None), ("tokenizer_json", wide, GOLDEN)):
        params, vocabulary = T5Target(config).init(jax.random.key(0)), checkpoints.Vocabulary(file)
        how = {"config": config, "vocabulary": vocabulary, "format": "huggingface"}
        checkpoints.save(folder / name, params, **how)
        record = folder / name / "config.json"
        stated = {"task_specific_params": {"spelling": {"prefix": PREFIX}}}
        record.write_text(json.dumps(json.loads(record.read_text()) | stated))
    letters = random.Random(0)
    words = ["".join(letters.choices("abcd", k=letters.randint(1, 8))) for _ in range(250)]
    (folder / "words.txt").write_text("".join(f"{word}\treference\n" for word in words))
    return folder


@pytest.fixture
def flags(folder):
    """The target and the inputs."""
    return f"--target={folder / 'target'}", f"--inputs={folder / 'words.txt'}"


@pytest.fixture
def command(cache, capsys):
    """Runs a command; returns the exit code, stdout and stderr."""

    def run(name, *flags):
        capsys.readouterr()
        kept = f"--compilation_cache_dir={cache}"
        return cli.main([name, kept, *flags]), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def made(folder, cache):
    """What Python makes of a target that draws at temperature 1.5."""
    words = re.findall(r"^\w+", (folder / "words.txt").read_text(), re.M)
    kept = f"--compilation_cache_dir={cache}"
    found = specdec.distill(
        folder / "target", words, folder / "made", task_prefix=PREFIX, flags=[kept, *SMALL, *DRAWN]
    )
    assert found.certificate.passed and found.pair == folder / "made/pair.gin"
    return folder / "made"


@pytest.mark.slow
def test_a_certified_pair_comes_out(made):
    certificate = json.loads((made / "certificate.json").read_text())
    assert certificate["passed"] and certificate["exact"] and len(certificate["checks"]) == 11
    config = checkpoints.config_from(made / "draft/export")
    assert (config.num_decoder_layers, config.num_encoder_layers) == (1, 0)
    assert config.encoded_dim == TARGET.emb_dim
    log = [json.loads(line) for line in (made / "draft/log.jsonl").read_text().splitlines()]
    alphas = [one["validation_alpha"] for one in log if "validation_alpha" in one]
    assert len(alphas) == 8 and alphas[-1] > alphas[0]
    assert (made / "tuned/tried.jsonl").exists()
    (card,) = (made / "draft/export").glob("checkpoint_*/README.md")
    assert "\n# made\n" in card.read_text()
    figures = card.read_text().partition("## Figures\n\n")[2].partition("\n\n")[0].splitlines()
    assert figures[-1].startswith("- certificate: ") and "with Fixed(" in figures[-2]
    assert f"- validation alpha: {max(alphas):.4f}" in figures


def written(folder, split):
    """The tokens that the target wrote, by input."""
    lines = [
        line
        for path in (folder / "texts" / split).glob("predictions*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return {one["input"]: one["tokens"] for one in map(json.loads, lines)}


def test_flags_do_not_override_what_was_tuned(tmp_path):
    parser = argparse.ArgumentParser()
    add_flags(parser, "distill")
    flags = ["--gamma=3", "--schedule=heuristic", "--gin.GAMMA=4", "--gin.LOSSY=True"]
    given = Given(parser.parse_args(settings.joined(flags)))
    tuned = tmp_path / "tuned.gin"
    tuned.write_text("include 'schedules/fixed.gin'\n\nGAMMA = 8\n")
    own = given.flags({"SPLIT": "test"}, [str(tuned)])
    assert own.gin_bindings == ["LOSSY=True", "SPLIT='test'"]
    assert own.gamma is own.schedule is None and given.flags({}).gamma == 3
    assert "GAMMA" not in given.text({}, [str(tuned)])


def test_paths_of_the_users_gin_files_become_absolute(tmp_path, monkeypatch):
    """Names of the project's own files stay, even if the current folder has a file of that name."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine.gin", "text.gin"):
        Path(name).touch()
    parser = argparse.ArgumentParser()
    add_flags(parser, "distill")
    args = parser.parse_args([])
    args.gin_file = ["mine.gin", "demo.gin", Own("text.gin")]
    included = [f"include {name!r}" for name in (f"{tmp_path}/mine.gin", "demo.gin", "text.gin")]
    assert Given(args).text({}, ()).splitlines() == [*included, ""]


def alpha(folder):
    """Returns alpha of the last evaluation."""
    return json.loads((folder / "draft/log.jsonl").read_text().splitlines()[-1])["validation_alpha"]


MESH = "--gin.NUM_PARTITIONS=2", "--gin.BATCH_SIZE=8", "--gin.DRAFT_TOP=64"


@pytest.fixture
def over_mesh(flags):
    """Flags of a run over eight devices."""
    return *flags, *SMALL, *DRAWN, *MESH, "--task_prefix=" + PREFIX


@pytest.fixture(scope="module")
def meshed(folder, cache):
    """The folder of a pair that one process makes over eight devices."""
    words = re.findall(r"^\w+", (folder / "words.txt").read_text(), re.M)
    flags = f"--compilation_cache_dir={cache}", *SMALL, *DRAWN, *MESH
    found = specdec.distill(
        folder / "target", words, folder / "meshed", task_prefix=PREFIX, flags=flags
    )
    assert found.certificate.passed
    return folder / "meshed"


@pytest.mark.slow
def test_a_mesh_makes_a_certified_pair(made, meshed):
    """The target writes the same texts as on one device, and its distributions are stored once."""
    for split in ("train", "validation"):
        assert written(meshed, split) == written(made, split)
    assert (meshed / "draft/laws/00000/ids.npy").exists()
    assert abs(alpha(meshed) - alpha(made)) < 0.1, "64 ids of 384 say much"


@pytest.mark.slow
def test_two_processes_make_the_same_pair(meshed, over_mesh, tmp_path):
    """Each writes its own texts, and one of them everything else."""
    both = two_hosts("distill", *over_mesh, f"--output_dir={tmp_path / 'two'}")
    outs, errs = zip(*(process.communicate(timeout=900) for process in both), strict=True)
    assert all(process.returncode == 0 for process in both), errs
    assert "CERTIFIED" in outs[0] and not outs[1].replace("[Gloo]", "").count("PASS")

    def files(folder):
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {re.sub(r"-\d+-of-\d+", "", str(path)) for path in found if path.name[0] != "."}

    def kept(folder):  # those of checkpoints differ: Orbax has a part for each process
        return {name for name in files(folder) if "/checkpoint" not in name}

    assert kept(tmp_path / "two") == kept(meshed)
    for split in ("train", "validation"):
        assert written(tmp_path / "two", split) == written(meshed, split)
    for name in ("texts", "ids"):
        paths = (folder / f"draft/laws/00000/{name}.npy" for folder in (tmp_path / "two", meshed))
        np.testing.assert_array_equal(*map(np.load, paths))
    # Sums in another order.
    assert alpha(tmp_path / "two") == pytest.approx(alpha(meshed), abs=1e-4)


@pytest.mark.slow
def test_the_pair_is_what_other_commands_take(made, command):
    pair = f"--gin_file={made / 'pair.gin'}", "--drafter=autoregressive"
    code, out, err = command("decode", *pair, "--verifier=coupled", "--compare", "--limit=20")
    assert code == 0, err
    assert "all 20 outputs identical" in err and "temperature=1.5" in err


@pytest.mark.slow
def test_a_finished_run_is_not_made_again(made, flags, command):
    """The command goes on with what Python began, and needs no prefix for that."""
    export = next((made / "draft/export").iterdir())
    before, made_at = (made / "draft/log.jsonl").read_text(), export.stat().st_mtime_ns
    (made / "certificate.json").unlink()
    code, out, err = command("distill", *flags, *SMALL, *DRAWN, f"--output_dir={made}")
    assert code == 0 and "CERTIFIED" in out
    assert (made / "draft/log.jsonl").read_text() == before
    assert export.stat().st_mtime_ns == made_at and "holds a run of 40 steps" in err
    assert "specdec: checking" not in err
    assert f"the target's first input: '{PREFIX}" in out and "\nstep 4 of 4: " in out
    sentence = out.splitlines()[-1]
    assert sentence.endswith(f": specdec decode --gin_file={made / 'pair.gin'}")


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused(made, flags, command):
    more = "--gin.DRAFT_STEPS=50", *SMALL[1:], *DRAWN
    code, out, err = command("distill", *flags, *more, f"--output_dir={made}")
    assert "was begun with DRAFT_STEPS = 40, and now it is 50" in the_line(code, out, err)
    code, out, err = command("distill", *flags, "--task_prefix=", f"--output_dir={made}")
    assert f"was begun with TASK_PREFIX = {PREFIX!r}, and now it is ''" in the_line(code, out, err)


@pytest.mark.ci
@pytest.mark.parametrize(
    "more, line",
    [
        (["--gin.DRAFT_LAYERS=3"], "DRAFT_LAYERS is 3 but the target has 2; give fewer"),
        (["--gin.DRAFT_LAYERS=0"], "Distillation.layers is 0; give a positive integer"),
        (["--gin.DRAFT_HEAD=0"], "Distillation.head is 0; give a positive integer, or None"),
        (["--gin.DRAFT_TOP=0"], "Distillation.top is 0; give a positive integer, or None"),
        (["--gin.DRAFT_TOP=2176"], "DRAFT_TOP is 2176 and the target has 2176 ids; give fewer"),
        (["--gin.DRAFT_STEPS=1"], "Distillation.steps is 1; give 2 or more, for the rate to fall"),
        (["--gin.LEARNING_RATE=0"], "Distillation.learning_rate is 0; give a positive number"),
        (["--gin.TEXTS='dev'"], "the task has no split 'dev'; give one of train, validation"),
        (["--gin.TEXTS='validation'"], "TEXTS and HELD_OUT are both 'validation'; give two splits"),
        (["--gin.HELD_OUT=3"], "Distillation.held_out is 3; give the name of a split"),
        (
            ["--gin.DIVERGENCES={'kl': 1}"],
            "Align.divergences has 'kl'; give some of forward_kl, reverse_kl, jensen_shannon, "
            "total_variation, total_variation_plus, log_acceptance, adaptive, greedy",
        ),
    ],
)
def test_what_cannot_be_is_said_before_any_work(folder, command, tmp_path, more, line):
    given = f"--target={folder / 'tokenizer_json'}", f"--inputs={folder / 'words.txt'}"
    out_dir = f"--output_dir={tmp_path / 'out'}"
    code, out, err = command("distill", *given, f"--task_prefix={PREFIX}", out_dir, *more)
    assert the_line(code, out, err) == f"specdec: {line}"
    assert not (tmp_path / "out/texts").exists()
