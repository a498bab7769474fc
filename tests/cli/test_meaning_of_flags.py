"""The settings that flags stand for, word by word: pytest tests/cli/test_meaning_of_flags.py"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from specdec import cli, tasks
from specdec.cli import machine, shorthands, train
from specdec.common.values import UsageError

PREVIOUS = ["DRAFTER=@drafters.PreviousOutput()", "DRAFT_CHECKPOINT_PATHS={}"]
HYBRID = [
    "DRAFTER=@drafters.Hybrid()",
    "DRAFT_CHECKPOINT_PATHS={'draft': %DRAFT_CHECKPOINT_PATH, 'store': %DRAFT_TABLE_PATH}",
]


@pytest.mark.parametrize(
    "argv, files, bindings, more",
    [
        (
            ["--target=t", "--text=a", "--text=b\r\nc", "--task_prefix=p: "],
            ["text.gin"],
            ["CHECKPOINT_PATH='t'", "INPUT_TEXTS=('p: a', 'p: b\\nc')"],
            [],
        ),
        (
            ["--target=t", "--text=-", "--task_prefix=p: "],
            ["text.gin"],
            ["CHECKPOINT_PATH='t'", "TASK_PREFIX='p: '"],
            [],
        ),
        (["--gin_file=x.gin", "--text=a"], ["given.gin"], ["INPUT_TEXTS=('a',)"], []),
        (["--gin_file=x.gin", "--text=-"], [], [], []),
        (["--gin_file=x.gin", "--input_file=f"], ["given.gin"], ["INPUT_FILE='f'"], []),
        (
            ["--target=t", "--input_file=f", "--task_prefix=p: ", "--vocabulary=bytes"],
            ["text.gin"],
            [
                "CHECKPOINT_PATH='t'",
                "VOCABULARY=@tasks.Bytes()",
                "INPUT_FILE='f'",
                "TASK_PREFIX='p: '",
            ],
            [],
        ),
        (
            ["--target=t", "--draft=d", "--temperature=0.5", "--max_length=7"],
            ["sampling/temperature.gin", "text.gin", "drafters/autoregressive.gin"],
            [
                "CHECKPOINT_PATH='t'",
                "DRAFT_CHECKPOINT_PATH='d'",
                "TEMPERATURE=0.5",
                "SAMPLING=@sampling.Sampling()",
            ],
            [],
        ),
        # Previous outputs draft, before a draft if there is one, unless something else is said.
        (
            ["--target=t", "--previous=f"],
            ["drafters/previous_output.gin", "text.gin"],
            ["CHECKPOINT_PATH='t'", "GAMMA=16", *PREVIOUS],
            [],
        ),
        (
            ["--target=t", "--live", "--draft=d", "--gin.GAMMAS=3"],
            ["drafters/hybrid.gin", "text.gin", "drafters/autoregressive.gin"],
            ["CHECKPOINT_PATH='t'", "DRAFT_CHECKPOINT_PATH='d'", "GAMMA=16", *HYBRID],
            ["GAMMAS=3", "HYBRID_FIRST=@drafters.PreviousOutput()"],
        ),
        (
            ["--target=t", "--previous=f", "--drafter=hybrid", "--schedule=guard"],
            ["drafters/hybrid.gin", "schedules/guard.gin", "text.gin"],
            ["CHECKPOINT_PATH='t'", *HYBRID, "SCHEDULE=@schedules.Guard()"],
            [],
        ),
        (
            ["--target=t", "--previous=f", "--gin.GAMMA = 3"],
            ["drafters/previous_output.gin", "text.gin"],
            ["CHECKPOINT_PATH='t'", *PREVIOUS],
            ["GAMMA = 3"],
        ),
        (
            ["--target=t", "--previous=f", "--gamma=5", "--temperature=0"],
            ["drafters/previous_output.gin", "sampling/greedy.gin", "text.gin"],
            ["CHECKPOINT_PATH='t'", "GAMMA=5", *PREVIOUS, "SAMPLING=@sampling.Greedy()"],
            [],
        ),
    ],
)
def test_settings_of_flags(argv, files, bindings, more):
    args = cli.overview().parse_args(cli.settings.joined(["decode", *argv]))
    assert shorthands.settings_of(args) == (files, bindings)
    assert args.gin_bindings == more


def joined(distributed, monkeypatch) -> dict:
    """Returns the options that JAX is given."""
    asked: dict = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **how: asked.update(how))
    monkeypatch.setattr(jax.config, "update", lambda name, value: asked.update({name: value}))
    machine.join_other_hosts(SimpleNamespace(distributed=distributed))
    return asked


def test_hosts_are_joined_as_the_flag_says(monkeypatch):
    how = {
        "jax_enable_preemption_service": False,
        "coordinator_address": "10.0.0.1:8476",
        "num_processes": 3,
        "process_id": 2,
        "initialization_timeout": machine.JOINING + machine.SILENCE,
        "heartbeat_timeout_seconds": machine.SILENCE,
        "shutdown_timeout_seconds": machine.PATIENCE,
    }
    assert joined("10.0.0.1:8476,3,2", monkeypatch) == how
    alone = {"coordinator_address": None, "num_processes": None, "process_id": None}
    assert joined("", monkeypatch) == how | alone  # on a TPU JAX knows
    assert joined(None, monkeypatch) == {}
    for wrong in ("a", "a,1", "a,1,x", "a,1,2,3"):
        with pytest.raises(UsageError, match=f"--distributed={wrong} is not ADDRESS,COUNT,INDEX"):
            joined(wrong, monkeypatch)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert joined("10.0.0.1:8476,3,2", monkeypatch) == {}


def test_warnings_about_sound_are_one_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with machine.notes_of_one_line():
            warnings.warn(tasks.SoundWarning("a.wav ends early"), stacklevel=1)
            assert capsys.readouterr().err == "specdec: a.wav ends early\n"
            with pytest.warns(UserWarning, match="other"):
                warnings.warn("other", stacklevel=1)


def flags_of_training(**others) -> SimpleNamespace:
    fields = dict.fromkeys(("table", "tokens", "passes", "distributed", "steps", "seed"))
    return SimpleNamespace(**fields | {"output_dir": "out"} | others)


@pytest.mark.parametrize(
    "given, asked",
    [
        (
            {"table": "ngram"},
            {"tokens": 100_000, "passes": None, "seed": 0, "steps": None},
        ),
        (
            {"table": "store", "tokens": 7, "seed": 3},
            {"tokens": 7, "passes": None, "seed": 3, "steps": None},
        ),
        (
            {"table": "classifier", "passes": "p", "steps": 5},
            {"tokens": 100_000, "passes": "p", "seed": 0, "steps": 5},
        ),
    ],
)
def test_tables_are_made_of_the_target_alone(monkeypatch, capsys, given, asked):
    """But for a classifier, which is fitted to the drafts of the run."""
    made = []

    class Run(SimpleNamespace):
        pass

    plan = SimpleNamespace(drafts=True, alone=lambda: "alone")
    monkeypatch.setattr(train.dataclasses, "replace", lambda run, plan: Run(plan=plan))
    monkeypatch.setattr(train.runs, "with_engine", lambda run, unmarked: (run.plan, unmarked))
    monkeypatch.setattr(train, "ready", lambda opened: ("ready", *opened))
    monkeypatch.setattr(train, "make", lambda *a, **b: made.append((a, b)) or "made")
    args = flags_of_training(**given)
    train._refuse_flags_of_others(args)
    train._make_table(args, Run(plan=plan))
    ((opened, kind, folder), how) = made[0]
    assert opened == ("ready", plan if kind == "classifier" else "alone", True)
    assert (kind, folder) == (given["table"], Path("out"))
    say = how.pop("say")
    assert how == asked and capsys.readouterr().out == "made\n"
    say("a line")
    assert capsys.readouterr().err == "a line\n"


def test_mistakes_are_found_before_hosts_join_and_programs_are_kept(monkeypatch):
    """So that no host waits for one that has ended with a mistake."""
    done: list[object] = []
    monkeypatch.setattr(machine, "refuse_no_mesh", lambda args, mesh: done.append(mesh))
    monkeypatch.setattr(machine, "refuse_unwritable_folder", lambda *what: done.append(what))
    monkeypatch.setattr(machine, "join_other_hosts", lambda args: done.append("joined"))
    monkeypatch.setattr(jax.config, "update", lambda name, value: done.append((name, value)))
    machine.prepare_training(SimpleNamespace(output_dir="out"), 4)
    assert done == [4, ("--output_dir", "out"), "joined"]
    for folder, kept in (("programs", "programs"), ("", None)):
        done.clear()
        machine.prepare(SimpleNamespace(compilation_cache_dir=folder))
        assert done == [
            "joined",
            ("--compilation_cache_dir", folder),
            ("jax_compilation_cache_dir", kept),
            ("jax_persistent_cache_min_compile_time_secs", 0),
        ]


@pytest.mark.parametrize(
    "more, missing",
    [
        ("", "its size and depth; add liar.Liar.size = VALUE and liar.Liar.depth = VALUE"),
        ("liar.Liar.depth = 3\n", "its size; add liar.Liar.size = VALUE"),
    ],
)
def test_a_class_of_the_user_without_a_field_is_told_the_line(tmp_path, capsys, more, missing):
    (tmp_path / "liar.py").write_text(
        "import dataclasses\n"
        "from specdec.drafters import Drafter\n\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Liar(Drafter):\n"
        "    size: int\n"
        "    depth: int\n"
        "    def propose(self, params, request, state): ...\n"
    )
    lines = "from __gin__ import dynamic_registration\nimport liar\nDRAFTER = @liar.Liar()\n"
    (tmp_path / "liar.gin").write_text(f"{lines}DRAFT_CHECKPOINT_PATHS = {{}}\n{more}")
    flags = ["--gin_file=demo.gin", f"--gin_file={tmp_path / 'liar.gin'}", "--dry_run"]
    assert cli.main(["decode", *flags]) == 2
    assert capsys.readouterr().err == f"specdec: no gin line gives Liar {missing}\n"
