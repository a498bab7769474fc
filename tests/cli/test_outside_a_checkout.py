"""Commands in an empty folder: pytest tests/cli/test_outside_a_checkout.py"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import specdec
from specdec import checkpoints, cli
from specdec.common import demo, resources
from specdec.report import replicate
from specdec.report.replicate import page
from specdec.report.replicate.study import Study

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_demo_is_the_embedded_pair_unless_the_folder_has_one(empty_folder):
    for name in ("target", "draft", "vocabulary.model", "texts"):
        assert resources.shipped(f"demo/{name}") == str(resources.folder("demo") / name)
    unchanged = ("demo", "demo/", "demo/other", "demos/target", "google/target", "/demo/target", "")
    assert [resources.shipped(path) for path in unchanged] == list(unchanged)
    (empty_folder / "demo" / "target").mkdir(parents=True)
    assert resources.shipped("demo/target") == "demo/target"
    assert resources.shipped("demo/draft") == demo.path("draft")


@pytest.mark.parametrize("flags", [(), ("--vocabulary=demo/vocabulary.model",)])
def test_the_embedded_pair_is_converted(capsys, flags):
    assert cli.main(["convert", "demo/draft", "mine", "--format=huggingface", *flags]) == 0
    assert "vocabulary: vocabulary.model" in capsys.readouterr().out
    assert checkpoints.config_from("mine") == checkpoints.config_from(demo.path("draft"))
    assert checkpoints.vocabulary_from("mine") is not None


def test_the_embedded_pair_decodes_by_its_name(capsys):
    argv = ["decode", "--target=demo/target", "--draft=demo/draft", "--gamma=7"]
    more = [
        "--vocabulary=demo/vocabulary.model",
        "--text=translate English to German: The cat sleeps.",
    ]
    assert cli.main([*argv, *more]) == 0
    assert capsys.readouterr().out == "Die Katze schläft.\n"


def test_a_study_names_the_files_that_it_wrote(empty_folder, monkeypatch):
    """jinja2 and matplotlib are extras."""
    study = Study(name="mine", title="Mine", about="", rows=[])
    monkeypatch.delattr(replicate, "figure", raising=False)
    monkeypatch.setitem(sys.modules, "specdec.report.replicate.figure", None)
    written = page.write_all(study, [], empty_folder, None)
    assert written == ["page.md", "page.tex", "page.json"]
    assert sorted(file.name for file in empty_folder.iterdir()) == sorted(written)


@pytest.mark.slow
def test_a_wheel_of_the_source_package_runs_the_quick_start(empty_folder):
    """The wheel is unpacked, so the commands find JAX in the environment of the tests."""

    def run(*argv: str, folder: Path, **environment: str) -> str:
        argv = (sys.executable, *argv)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= environment
        return subprocess.run(argv, cwd=folder, env=env, check=True, stdout=-1, text=True).stdout

    build = ("-m", "hatchling", "build", "-d", str(empty_folder))
    run(*build, "-t", "sdist", folder=ROOT)
    name = f"specdec_jax-{specdec.__version__}"
    shutil.unpack_archive(empty_folder / f"{name}.tar.gz", empty_folder, filter="data")
    run(*build, "-t", "wheel", folder=empty_folder / name)
    site, work = empty_folder / "site", empty_folder / "work"
    shutil.unpack_archive(empty_folder / f"{name}-py3-none-any.whl", site, "zip")
    work.mkdir()
    command = functools.partial(run, "-m", "specdec", folder=work, PYTHONPATH=str(site))
    assert command("--version") == f"specdec {specdec.__version__}\n"
    assert command("decode", "--gin_file=demo.gin", "--limit=2").count("\n") == 2
    command("convert", "demo/target", "my-t5", "--format=huggingface")
    assert checkpoints.config_from(work / "my-t5") == checkpoints.config_from(demo.path("target"))
    rows = command("replicate", "demo", "--dry_run").splitlines()
    assert "| ende_t0 | nothing |" in "\n".join(rows)
