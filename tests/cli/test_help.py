"""What the command line says of itself: pytest tests/cli/test_help.py"""

import re
import shlex
import subprocess
import sys

import pytest

from specdec import cli
from specdec.cli import gin_files, listing, settings
from specdec.cli import run as runs
from specdec.cli.table import TABLE
from specdec.common import resources
from specdec.common.environment import version

GIN = resources.folder("gin")


@pytest.fixture
def said(capsys, monkeypatch):
    """Runs a command that only prints; returns what it prints where no terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*argv):
        assert cli.main(argv) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def mistake(capsys):
    """Runs a command that is refused; returns its one line."""

    def run(*argv):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        out, err = capsys.readouterr()
        assert stopped.value.code == 2 and out == ""
        (line,) = err.splitlines()
        return line

    return run


def test_alone_it_shows_every_command_in_its_group(said):
    shown = said()
    titles = re.findall(r"^(\w+):$", shown, re.MULTILINE)
    assert titles == ["run", "measure", "models", "help", "examples"]
    commands = cli.overview().commands.choices
    assert re.findall(r"^  (\w+)  ", shown, re.MULTILINE) == list(commands)
    assert all(len(line) < 100 for line in shown.splitlines())


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"specdec {version('specdec')}\n"


@pytest.mark.parametrize("example", TABLE["examples"])
def test_examples_are_understood(example):
    args = cli.overview().parse_args(settings.joined(shlex.split(example)[1:]))
    assert runs.described(args).plan.exact


MISTAKES = {
    ("decod",): "there is no command 'decod'; did you mean decode?",
    ("xyz",): "there is no command 'xyz'; see specdec --help",
    ("help",): "there is no command 'help'; did you mean specdec --help?",
    ("help", "tune"): "there is no command 'help'; did you mean specdec tune --help?",
    ("decode", "demo.gin", "--gamma", "3"): (
        "specdec decode takes no demo.gin; did you mean specdec decode --gin_file=demo.gin?"
    ),
    ("train", "mine.gin"): (
        "specdec train takes no mine.gin; did you mean specdec train --gin_file=mine.gin?"
    ),
    ("verify", "my-t5", "my-draft"): (
        "specdec verify takes no my-t5 my-draft; did you mean specdec verify --target=my-t5 "
        "--draft=my-draft?"
    ),
    ("convert", "a", "b", "c", "--format=t5x"): (
        "specdec convert takes no c; see specdec convert --help"
    ),
    ("--versoin",): "specdec has no flag --versoin; did you mean --version?",
    ("decode", "--gama=4"): "specdec decode has no flag --gama; did you mean --gamma?",
    ("convert", "a", "b", "--fromat=t5x"): (
        "specdec convert has no flag --fromat; did you mean --format?"
    ),
    ("decode", "--xyz"): "specdec decode has no flag --xyz; see specdec decode --help",
}
REQUIRED = {
    "check": "DIR",
    "compile": "--topology",
    "convert": "--format",
    "eval": "--output_dir",
    "forecast": "--passes",
    "grow": "--preset",
    "replicate": "STUDY",
    "train": "--output_dir",
    "tune": "--output_dir",
}
MISTAKES |= {
    (command,): f"the following arguments are required: {flags}; see specdec {command} --help"
    for command, flags in REQUIRED.items()
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_a_mistaken_word_is_one_line(mistake, argv):
    assert mistake(*argv) == f"specdec: {MISTAKES[argv]}"


def test_a_command_does_not_change_the_defaults_of_the_next():
    """Also of the next parser of the process."""
    for _ in range(2):
        args = cli.overview().parse_args(["decode"])
        assert args.gin_bindings == args.gin_file == []
        args.gin_bindings.append("TASK=None")


def test_a_text_may_look_like_a_flag():
    args = cli.overview().parse_args(["decode", "--text=--gama", "--text", "-- a dash"])
    assert args.text == ["--gama", "-- a dash"]


@pytest.mark.parametrize(
    "flag, hint",
    [
        ("--gin_file=dmeo.gin", "did you mean demo.gin?"),
        ("--gin_file=verifiers/copuled.gin", "did you mean verifiers/coupled.gin?"),
        ("--gin.TEMPERATURE=0.5", "include the gin file that reads it, sampling/temperature.gin"),
    ],
)
def test_gin_files_are_suggested(capsys, flag, hint):
    assert cli.main(["decode", "--gin_file=demo.gin", flag]) == 2
    assert hint in capsys.readouterr().err


# The lists.


def test_every_kind_is_listed(said):
    assert re.findall(r"^specdec list (\w+)", said("list"), re.MULTILINE) == list(listing.KINDS)


@pytest.mark.parametrize("kind", listing.KINDS)
def test_a_list_has_one_line_for_each_thing(said, kind):
    """Under the headings, if there are any, and above what to do with them."""
    rows = list(listing.KINDS[kind]())
    *found, _, _ = said("list", kind).split("\n")[:-1]
    lines = [line for line in found if line and line not in {row.topic for row in rows}]
    assert [line.split("  ")[0] for line in lines] == [row.name for row in rows]
    assert all(re.search(r"  \S", line) for line in lines) and all(row.name for row in rows)


def test_macros_are_listed_by_topic(said):
    topics = re.findall(r"^([A-Z][A-Za-z0-9]+)$", said("list", "macros"), re.MULTILINE)
    assert topics[:4] == ["Models", "Texts", "Drafters", "Schedules"]
    assert len(topics) == len(set(topics)) and "Training" in topics
    assert all(item.topic for item in listing.macros())
    by_name = {row.name: row for row in listing.macros()}
    assert by_name["GAMMA"].topic == "Schedules" and by_name["TASK_FILES"].topic == "Texts"


def test_the_meaning_of_a_macro_stands_alone():
    """It begins as a sentence does, and not with a word that only its neighbour explains."""
    for row in listing.macros():
        assert re.match(r"[A-Z'c]", row.text) and len(row.text.split()) >= 4, row
        assert not re.match(r"(Of|That|Which|Likewise|Or|Its)\b", row.text), row


def test_a_verifier_says_what_it_does_and_costs():
    shown = [row for row in listing.fragments() if row.name.startswith("verifiers/")]
    assert len(shown) == 13
    for row in shown:
        assert re.match("Exact|NOT EXACT", row.text) and re.search("cost|cheapest", row.text), row


def test_all_that_ships_is_listed():
    """But for what several runs include, which is no run."""
    runs_, fragments = ([row.name for row in rows()] for rows in (listing.runs, listing.fragments))
    names = (
        "ladder",
        "leviathan",
        "madlad",
        "pictures",
        "series",
        "speech",
        "t5gemma",
        "whisper",
        "yan",
    )
    folders = [f"{name}/common.gin" for name in names]
    commons = (*folders, "pictures/task.gin", "train_demo.gin", "train_copying.gin")
    assert {*runs_, *fragments, *commons} == set(gin_files.own_names())
    tasks = [row.name for row in listing.tasks()]
    assert tasks == [name for name in fragments if name.startswith("tasks/")]


def test_presets_are_those_that_gin_knows():
    from specdec.models.t5 import shapes

    rows = {row.name: row.text for row in listing.models()}
    assert set(shapes.PRESETS.values()) <= set(rows)
    assert rows["flan_t5_xl"] == "as t5_1_1_xl (models/t5.gin)"
    assert rows["mt5_small"].startswith("emb_dim 512, num_heads 6, head_dim 64, mlp_dim 1024, ")


def test_every_macro_has_a_meaning():
    """Those of a skeleton in its own file; those of fragments wherever they are set."""
    for skeleton in listing.SKELETONS:
        without = [m.name for m in gin_files.macros(GIN / skeleton) if not m.meaning]
        assert not without, f"{skeleton} does not say what they mean: {without}"
    folders = (GIN, resources.folder("configs"))
    files = [folder / name for folder in folders for name in gin_files.names([folder])]
    set_somewhere = {macro.name for file in files for macro in gin_files.macros(file)}
    explained = {m.name for file in files for m in gin_files.macros(file) if m.meaning}
    assert not set_somewhere - explained
    read = set(re.findall(r"%([A-Z][A-Z0-9_]+)", "".join(file.read_text() for file in files)))
    assert read - explained == {"OPTIMIZER"}  # T5X's


def test_a_macro_has_the_default_that_is_in_force():
    shown = {row.name: row.text for row in reversed(list(listing.macros()))}
    meaning = "Number of tokens that are drafted for each target call"
    assert shown["GAMMA"] == f"{meaning} (default 4; schedules/fixed.gin)"
    assert shown["VERIFIER"].endswith("(default @verifiers.Block(); verifiers/block.gin)")
    assert "(required; " in shown["MODEL"]
    rows = [row.name for row in listing.macros()]
    assert max(map(rows.count, rows)) == 2  # of a run and of training


def test_a_terminal_has_lines_of_its_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.main(["list", "macros"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60 and any(line.startswith(" " * 20) for line in lines)
    cli.main(["list", "runs"])  # names of more than half of the width stand above their texts
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60 and lines[0] == "demo.gin" and lines[1].startswith("    The")


def test_macros_of_several_lines(tmp_path):
    (tmp_path / "a.gin").write_text(
        "X = {'a': 1,  # one\n     'b': '# 2'}  # both\n\nf.y = 3\nf:\n  Z = 1\nY = %X\n"
    )
    assert list(gin_files.macros(tmp_path / "a.gin")) == [
        ("X", "{'a': 1, 'b': '# 2'}", "both"),
        ("Y", "%X", ""),
    ]


# Completion.

COMPLETE = """
set -e
. "$0"
for words in "specdec dec" "specdec decode --verif" "specdec decode --verifier co" \\
    "specdec decode --gin_file demo_s" "specdec list mac" "specdec replicate lev"; do
  COMP_WORDS=($words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _shtab_specdec
  echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_flags_and_gin_files(said, tmp_path):
    script = tmp_path / "specdec"
    script.write_text(said("completion", "bash"))
    command = ["bash", "-c", COMPLETE, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    expected = ["decode", "--verifier", "coupled", "demo_sampled.gin", "macros", "leviathan"]
    assert done.stdout.splitlines() == expected


def test_zsh_lists_commands_with_a_short_line(said):
    assert "decode:'decode a split of a task" in said("completion", "zsh")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(said, shell):
    assert "decode" in said("completion", shell)


def test_without_shtab_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "specdec: completion needs shtab; pip install shtab\n"
