"""No unnamed file of the current folder is run: pytest tests/cli/test_current_folder.py

Each test works in a folder that has a file of every name of specdec's own gin files. If one of them
is read, it imports a module that is next to it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec import cli
from specdec.cli import gin_files
from specdec.common import resources

ROOT = Path(__file__).resolve().parents[2]


TARGET, DRAFT = (resources.folder("demo") / name for name in ("target", "draft"))
DECODE = ["decode", f"--target={TARGET}", "--text=one", "--dry_run"]


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The current folder; leaves Python's path as it was."""
    for name in gin_files.own_names():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import planted\n")
    (tmp_path / "planted.py").write_text("raise ImportError('planted')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize(
    "more",
    [
        (),
        (f"--draft={DRAFT}", "--verifier=coupled", "--schedule=fixed"),
        ("--drafter=input_copy", "--top_p=0.9"),
        ("--temperature=0", "--min_length=2"),
    ],
)
def test_shorthands_stand_for_files_of_the_package(planted, capsys, more):
    before = list(sys.path)
    assert cli.main([*DECODE, *more]) == 0
    assert "CHECKPOINT_PATH" in capsys.readouterr().out
    assert sys.path == before


def test_what_a_file_of_the_package_includes_is_of_the_package(planted, capsys):
    """The user's file is in another folder, and only that one is on Python's path."""
    theirs = planted / "theirs"
    theirs.mkdir()
    (theirs / "run.gin").write_text("include 'text.gin'\nBATCH_SIZE = 3\n")
    assert cli.main([*DECODE, "--gin_file=theirs/run.gin"]) == 0
    assert "BATCH_SIZE = 3" in capsys.readouterr().out
    assert str(theirs) in sys.path and str(planted) not in sys.path


def test_a_file_that_the_user_names_may_include_those_next_to_it(planted, capsys):
    (planted / "mine.gin").write_text("include 'more.gin'\n")
    (planted / "more.gin").write_text("BATCH_SIZE = 3\n")
    assert cli.main([*DECODE, "--gin_file=mine.gin"]) == 0
    assert "BATCH_SIZE = 3" in capsys.readouterr().out
    assert str(planted) in sys.path


def test_a_named_file_of_the_current_folder_comes_before_the_package(planted, capsys):
    assert cli.main([*DECODE, "--gin_file=demo.gin"]) == 2
    assert "demo.gin, line 1: planted; correct it" in capsys.readouterr().err


def test_presets_are_of_the_package(planted, capsys):
    grow = ["grow", str(TARGET), "out", "--preset=t5_1_1_none"]
    assert cli.main(grow) == 2
    assert "give a scope of models/t5.gin: flan_t5_base, " in capsys.readouterr().err


@pytest.mark.ci
def test_studies_are_of_the_package(planted, capsys):
    assert cli.main(["replicate", "demo", "--rows=ende_t0", "--dry_run"]) == 0
    assert "ende_t0" in capsys.readouterr().out


def test_the_module_is_not_run_with_the_current_folder_on_pythons_path(tmp_path):
    """`python -m` puts it there, for this process and for those that it starts."""
    here, site = tmp_path / "here", tmp_path / "site"
    here.mkdir()
    site.mkdir()
    for name in ("jax", "jinja2", "multiprocessing", "signal", "typing"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of this folder')\n")
    stub = "import importlib.machinery, os, sys\ncli = type(sys)('specdec.cli')\n"
    stub += "cli.__spec__ = importlib.machinery.ModuleSpec('specdec.cli', None)\n"
    stub += "sys.modules['specdec.cli'] = cli\n"
    stub += "cli.main = lambda: print(os.environ['PYTHONSAFEPATH'], sys.path)\n"
    (site / "sitecustomize.py").write_text(stub)
    run, more = [sys.executable, "-m", "specdec"], {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run(run, cwd=here, env=os.environ | more, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 ") and str(here) not in done.stdout
