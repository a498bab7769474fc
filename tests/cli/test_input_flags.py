"""`--target` and the other flags for models and texts: pytest tests/cli/test_input_flags.py"""

import json
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from specdec import cli, tasks
from specdec.cli import COMMANDS, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.table import TABLE
from specdec.common import demo
from specdec.drafters import NoSource

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# Commands that run a model, each with the flags that it requires.
COMMON = {
    "decode": (),
    "score": (),
    "eval": ("--output_dir=o",),
    "verify": (),
    "bench": (),
    "tune": ("--output_dir=o",),
    "acceptance": (),
    "forecast": ("--passes=p",),
    "compile": ("--topology=v4:2x2x1",),
    "distill": ("--output_dir=o",),
    "train": ("--output_dir=o",),
}
WITHOUT = {"report", "replicate", "convert", "check", "grow", "trim", "list", "completion"}
REFUSED = {
    ("eval", "text"): "references; give --input_file",
    ("score", "text"): "scored too; give --input_file",
    ("train", "text"): "many texts are needed; give --input_file",
    ("distill", "text"): "many texts; give --inputs",
    ("distill", "draft"): "the drafter is made; leave it out",
}
TARGET, DRAFT = str(demo.path("target")), str(demo.path("draft"))


@pytest.fixture
def flags(tmp_path):
    """Values of the flags; the file has references."""
    (tmp_path / "pairs.tsv").write_text("The house.\tDas Haus.\nA cat.\tEine Katze.\n")
    return {
        "target": TARGET,
        "draft": DRAFT,
        "vocabulary": str(demo.path("vocabulary.model")),
        "input_file": str(tmp_path / "pairs.tsv"),
        "text": "A dog.",
        "task_prefix": "translate English to German: ",
        "batch_size": "3",
    }


def parsed(command, *given):
    return cli.overview().parse_args(settings.joined([command, *COMMON[command], *given]))


def test_each_command_is_one_of_the_two_kinds():
    assert {*COMMON, *WITHOUT} == set(cli.overview().commands.choices)
    assert {*COMMON, *WITHOUT} == set(COMMANDS) and not {*COMMON} & WITHOUT


def read(args):
    """The values that the flags of a run have set."""
    run = runs.described(args)
    vocabulary: Any = run.data.vocabulary
    return {
        "target": run.checkpoint_path,
        "draft": run.draft_checkpoint_paths.get("draft"),
        "vocabulary": vocabulary and vocabulary.path,
        "input_file": run.data.texts,
        "text": run.data.texts,
        "batch_size": run.data.batch_size,
    }


@pytest.mark.parametrize("flag", TABLE["shared"]["models and texts"]["flags"])
@pytest.mark.parametrize("command", COMMON)
def test_every_command_has_every_flag(command, flag, flags):
    given = [f"--target={TARGET}"] * (flag != "target")
    if flag == "task_prefix":
        given.append(f"--input_file={flags['input_file']}")
    args = parsed(command, *given, f"--{flag}={flags[flag]}")
    if (command, flag) in REFUSED:
        with pytest.raises(cli.UsageError, match=f"--{flag}=.*{REFUSED[command, flag]}"):
            shorthands.refuse_senseless(args)
        return
    if command == "train":
        bindings = shorthands.training_settings_of(parsed(command, *given, f"--draft={DRAFT}"))[1]
        assert any(DRAFT in binding for binding in bindings)
        return
    found = read(args)
    expected = {
        "input_file": (("The house.", "Das Haus."), ("A cat.", "Eine Katze.")),
        "text": (("A dog.", None),),
        "batch_size": 3,
    }
    if flag == "task_prefix":
        prefix = flags["task_prefix"]
        assert [text for text, _ in found["text"]] == [f"{prefix}The house.", f"{prefix}A cat."]
    else:
        assert found[flag] == expected.get(flag, flags[flag])


@pytest.mark.parametrize("given", [(), ("--task_prefix=",), ("--gin.TASK_PREFIX='Ask: '",)])
def test_a_prefix_that_the_target_names_and_a_text_lacks_is_said(given, tmp_path, capsys):
    target, named = tmp_path / "target", {"translation": {"prefix": "translate: "}}
    shutil.copytree(GOLDEN / "hf_v1_0", target)
    record = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(record | {"task_specific_params": named}))
    args = parsed("decode", f"--target={target}", *given)
    known = runs.text_of(args.target)
    runs.note_missing_prefix(args, known, "translate: The house.")
    assert capsys.readouterr().err == ""
    runs.note_missing_prefix(args, known, "The house.")
    said = capsys.readouterr().err
    assert ("names prefixes ('translate: ') and the first text has none" in said) == (not given)


def test_training_takes_them_too(flags):
    from specdec import training

    given = [f"--{name}={flags[name]}" for name in ("target", "draft", "input_file", "batch_size")]
    args = parsed("train", *given)
    args.gin_file, args.gin_bindings = shorthands.training_settings_of(args)
    run = settings.build(training.TrainRun, args, {"TrainRun.steps": 2})
    assert (run.initial_path, run.target_path, run.batch_size) == (DRAFT, TARGET, 3)
    model, target = cast(Any, run.model), cast(Any, run.target)
    assert model.config.emb_dim < target.config.emb_dim
    assert tasks.count(run.task, "train") == 2


def test_flags_change_the_run_of_a_gin_file(flags):
    changed = parsed(
        "verify", "--gin_file=demo.gin", f"--draft={TARGET}", "--text=a", "--batch_size=2"
    )
    run = runs.described(changed)
    assert run.paths()["draft"] == TARGET and run.plan.gamma == 7
    assert run.data.texts == (("a", None),) and run.data.batch_size == 2


@pytest.mark.parametrize(
    "given", [(f"--target={TARGET}", f"--draft={DRAFT}"), ("--gin_file=demo.gin",)]
)
def test_a_drafter_without_the_source_stays_one(given):
    """Both read drafters/autoregressive.gin after the fragment of the flag."""
    drafter: Any = runs.described(parsed("decode", *given, "--drafter=no_source")).plan.drafter
    assert isinstance(drafter.view, NoSource)


def test_texts_replace_the_task(flags):
    """With the task's vocabulary, and in batches as wide as the texts need."""
    args = parsed("bench", f"--target={TARGET}", f"--input_file={flags['input_file']}")
    run = runs.described(args)
    vocabulary = runs.vocabulary_of(run)
    fitted = run.data.fitted(vocabulary, 1)
    assert (run.data.lengths["inputs"], fitted.lengths["inputs"]) == (512, 32)
    (first, second) = fitted.source(run.placement.share(), vocabulary=vocabulary)
    assert first.input_texts + second.input_texts == ["The house.", "A cat."]
    assert first.inputs.shape == (1, 32) and second.target_texts == ["Eine Katze."]


def test_a_vocabulary_of_none_is_the_targets(tmp_path):
    (tmp_path / "test.tsv").write_text("a\tb\n")
    args = parsed(
        "decode",
        f"--target={TARGET}",
        "--gin_file=tasks/local.gin",
        f"--gin.TASK_FILES={ {'test': str(tmp_path / 'test.tsv')} }",
        f"--gin.TASK_NAME='{tmp_path.name}'",
        "--gin.VOCABULARY=None",
    )
    run = runs.described(args)
    vocabulary = tasks.for_texts(cli.saved_vocabulary(TARGET))
    assert tasks.same_vocabulary(runs.vocabulary_of(run), vocabulary)


# Flags that are not there.

HINTS = {
    "bench --num_samples=8": "use --gin.NUM_SAMPLES=8",
    "bench --num_samples 8": "use --gin.NUM_SAMPLES=8",
    "bench --split=test": "use --gin.SPLIT=\"'test'\"",
    "train --learning_rate=0.1": "use --gin.LEARNING_RATE=0.1",
    "acceptance --num_beams=4": "beams are searched for by `specdec decode",
    "decode --max_new_tokens=9": "use --max_length",
    "verify --num_return_sequences=2": "use --gin.NUM_SAMPLES=2",
    "eval --num_return_sequences=2": "use --num_samples",
    "decode --mine=2 --gin_file=FILE": "use --gin.MINE=2",
}


@pytest.mark.parametrize("line", HINTS)
def test_a_flag_that_is_not_there_is_answered_with_the_one_that_is(line, capsys, tmp_path):
    (tmp_path / "own.gin").write_text("include 'demo.gin'\nMINE = 1\n")
    command, *argv = line.replace("FILE", str(tmp_path / "own.gin")).split(" ")
    with pytest.raises(SystemExit):
        cli.main([command, *argv])
    said = capsys.readouterr().err
    (flag, *_) = re.findall(r"--\w+", line)
    assert said.startswith(f"specdec: specdec {command} has no flag {flag}; {HINTS[line]}")
    assert "did you mean" not in said


# Commands that read one checkpoint and write another.


@pytest.mark.parametrize("command", ["convert", "grow", "trim"])
@pytest.mark.parametrize("paths", [("--input=none", "--output=o"), ("none", "o")])
def test_paths_are_given_in_one_way(command, paths, capsys, tmp_path):
    more = {"convert": ["--format=orbax"], "grow": ["--preset=t5_1_1_base"], "trim": []}[command]
    assert cli.main([command, *paths, *more]) == 2
    assert "none does not exist; " in capsys.readouterr().err
    assert cli.main([command, paths[0], *more]) == 2
    assert capsys.readouterr().err == "specdec: the output is missing; give --output=DIR\n"


def test_a_path_is_given_once(capsys):
    assert cli.main(["trim", "here", "o", "--input=there"]) == 2
    assert "here and --input=there are both the input; give one" in capsys.readouterr().err
