"""What messages tell a user to type is right: pytest tests/cli/test_remedies.py

Every flag, macro, gin file, command and package that a message of `specdec/` names exists. The
remedies of the table of mistakes are typed: the same command with the remedy goes on, or fails for
the next reason.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import jax
import mistakes
import pytest
import yard as yards
from mistakes import RUN
from remedies import HOLE, remedies

from specdec import checkpoints, cli
from specdec.cli import gin_files
from specdec.report.replicate.replication import Replication
from specdec.tasks import registry

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = cli.overview().commands.choices
FLAGS = {
    flag for one in COMMANDS.values() for action in one._actions for flag in action.option_strings
}
MACROS = gin_files.all_macros(gin_files.own_names())
FOUND = remedies()
# Words of messages that look like something to type and are not: files that commands write,
# placeholders, variables of the environment, flags of other programs, and parts of sentences.
OTHERS = {
    "file": {"FILE.gin", "run.gin", "tuned.gin", "OUTPUT_DIR/pair.gin", "OUTPUT_DIR/tuned.gin"},
    "macro": {"JAX_PLATFORMS", "NO_COLOR", "OUTPUT_DIR", "SYNTHETIC_ALPHA", "TFDS_DATA_DIR"},
    "gin": {"--gin.NAME", "--gin.module.Class.field"},
    "flag": {"--gin", "--data_dir", "--version"},
    "verb": {"reads", "does", "translates", "import", "decodes"},
}


def test_there_are_as_many_remedies_as_were_looked_at():
    assert len(FOUND) >= 250


@pytest.mark.parametrize("kind", OTHERS)
def test_what_a_message_names_exists(kind):
    known = {
        "file": set(gin_files.own_names()),
        "macro": MACROS,
        "gin": {f"--gin.{name}" for name in MACROS},
        "flag": FLAGS,
        "verb": COMMANDS.keys(),
    }[kind]
    named = {(name, one.place) for one in FOUND for name in one.named(kind) if HOLE not in name}
    assert [x for x in sorted(named) if x[0] not in known | OTHERS[kind]] == []
    assert OTHERS[kind] <= {name for name, _ in named}, "what is no longer said"


def test_packages_are_named_as_they_are_installed():
    """Each by its own name, which works in any folder, and which an extra asks for as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(one for extra in extras for one in extra)]
    known = {re.match(r"[\w-]+(\[\w+\])?", one)[0] for one in asked} | {"torch"}
    named = {
        package
        for one in FOUND
        for words in one.named("packages")
        for package in shlex.split(words.removesuffix(" first").removesuffix(" as well"))
    }
    assert named <= known and len(named) > 5


# Where a message leaves a value open: what is typed there.
VALUES = {
    "--grown": "t5_1_1_base",
    "--input_file": "YARD/pairs.tsv",
    "--vocabulary": "YARD/hf_pieces/spiece.model",
    "--passes": "YARD/passes.jsonl",
    "--previous": "YARD/previous.jsonl",
    "--gin_file": RUN.partition("=")[2],
    "--target": "YARD/target",
    "--draft": "YARD/draft",
    "--num_beams": "4",
    "--text": "a",
    "--max_length": "64",
    "--output_dir": "OUT/another",
    "--output": "OUT/another",
    "--output_file": "OUT/another",
    "--gin_search_paths": "YARD",
    "--inputs": "YARD/inputs.txt",
    "--decoder_layers": "0",
    "--encoder_layers": "0",
    "--head_size": "9",
    "--gin.NONE": "3",
    "--gin.DRAFT_MODEL": "@draft/checkpoints.model_from()",
    "--gin.SPLIT": "'test'",
    "--task_prefix": "x",
    "--gin.DRAFT_TABLE_PATH": "'YARD/store'",
    "--gin.TASK_FILES": "{'train': 'YARD/pairs.tsv'}",
    "--gin.EXIT_LAYERS": "1",
    "--gin.SCHEDULE_TABLE_PATH": "'YARD/store'",
    "--gin.DRAFT_COST": "0.1",
}
BARE = {"--live", "--shared_encoder"}
OPEN = {"", "FILE", "DIR", "VALUE"}
# Remedies that another command takes, or that are no part of a command line.
NOT_TYPED = {
    "--help": "it shows the help",
    "--table": "of `specdec train`, which makes the table",
    "--output_file": "of the command that makes what is missing",
    "--gin_search_paths": "for a file that is in another folder; none of these exists",
}
NOT_TYPED_IN = {
    "verify RUN --drafter=previous_output": "--live is of `specdec decode`",
    "trim --input=YARD/target --output=OUT/p --head_size=9 --predictions=YARD/folder": (
        "--output_dir is of `specdec eval`"
    ),
    "decode RUN --gin_flie=x": "the flag is a question",
    "train TRAIN --output_dir=OUT/t --distributed": "needs another host",
}
# All rows of a study are predicted before anything runs.
LONG = {
    "replicate yan --grown=t5_1_1_base",
    "replicate leviathan --synthetic --dry_run",
}
TABLE = {name: one for rows in mistakes.KINDS.values() for name, one in rows.items()}


@pytest.fixture(scope="module")
def yard(tmp_path_factory):
    folder = yards.make(tmp_path_factory.mktemp("yard"))
    (folder / "pairs.tsv").write_text("a\tb\nc\td\n")
    (folder / "previous.jsonl").write_text('{"index": 0, "tokens": [5, 1]}\n')
    before = jax.config.jax_enable_preemption_service
    tasks = dict(registry._registered)  # another yard has a task of the same name
    registry._registered.pop("yard", None)
    yield folder
    registry._registered.clear()
    registry._registered.update(tasks)
    jax.config.update("jax_enable_preemption_service", before)  # training switches it off


class LongWork(Exception):
    """A command goes on to read parameters, or a study to run its rows."""


@pytest.fixture
def run(yard, tmp_path, monkeypatch, capsys):
    """Runs a command line; returns the line of its error, '' if it goes on."""
    monkeypatch.chdir(tmp_path)

    def stop(*arguments, **options):
        raise LongWork

    monkeypatch.setattr(checkpoints, "load", stop)
    monkeypatch.setattr(Replication, "run", stop)

    def run(argv):
        for name, place in {"YARD": yard, "OUT": tmp_path}.items():
            argv = [re.sub(rf"\b{name}\b", str(place), arg) for arg in argv]
        capsys.readouterr()
        try:
            code = cli.main(argv)
        except SystemExit as stopped:  # of the flags
            code = stopped.code
        except LongWork:
            return ""
        said = capsys.readouterr().err.splitlines()
        return "" if code == 0 else next(line for line in said if "; " in line)

    return run


def typed(line: str) -> list[list[str]]:
    """The remedies in a message: words next to each other, or joined by 'and', are one.

    'leave --flag out' is '-' and the flag.
    """
    said = line.partition("; ")[2].replace("`", " ").replace("BEAM_RULE = ", "--gin.BEAM_RULE=")
    found: list[list[str]] = [[]]
    leaves = False
    for word in re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", said):
        plain = word.replace('"', "") if word.startswith("--") else word
        if plain.startswith("--"):
            found[-1].append("-" * leaves + plain.rstrip(",.;"))
        if not plain.startswith("--") and plain != "and" or plain[-1] in ",;":
            found.append([])
        leaves = plain == "leave"
    return [remedy for remedy in found if remedy]


def with_remedy(argv, line: str, remedy: list[str]) -> list[str]:
    """The command line with a remedy in it, in the place of what it replaces."""
    if wrong := re.search(r"has no flag (--\w+); use|(--gin.TASK_PREFIX) is for", line):
        argv = [arg for arg in argv if not arg.startswith(f"{wrong[1] or wrong[2]}=")]
    for word in remedy:
        flag, _, value = word.removeprefix("-").partition("=")
        flag = f"-{flag}" if not flag.startswith("--") else flag
        argv = [arg for arg in argv if flag == "--gin_file" or arg.partition("=")[0] != flag]
        if flag == "--input_file":
            argv = [arg for arg in argv if not arg.startswith("--text=")]
        if word.startswith("---"):
            continue
        if value in OPEN and flag not in BARE:
            value = VALUES[flag]
        value = value.replace("=VALUE", "=2")
        argv.append(f"{flag}={value}" if value else flag)
    return argv


ABOUT_THE_REMEDY = r"has no flag|No configurable|read by nothing|is not a value|not found in"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.slow] * (name in LONG or bool(number % 4 and not case.first))
            or [pytest.mark.ci] * bool(number % 4 or not case.first),
        )
        for number, (name, case) in enumerate(TABLE.items())
    ],
)
def test_a_remedy_is_typed(name, run):
    case = TABLE[name]
    if name in NOT_TYPED_IN or case.stdin:
        return
    line = run(case.argv)
    for remedy in typed(line):
        if any(word.partition("=")[0] in NOT_TYPED for word in remedy):
            continue
        then = run(with_remedy(case.argv, line, remedy))
        assert then != line, f"{remedy} changes nothing: {line}"
        assert not re.search(ABOUT_THE_REMEDY, then), f"{remedy} is refused: {then}"
