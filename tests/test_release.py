"""Workflows and the image name what exists: pytest tests/test_release.py"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from specdec import cli

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
INSTALLED = {"build"}  # modules that an earlier line of a workflow installs
MADE = {"dist", "site"}  # folders that a workflow's commands make
ON = True  # the key `on`, as YAML 1.1 reads it


class Understood(Exception):
    """The command line was understood."""


@pytest.fixture
def check(monkeypatch):
    """Returns a function that fails unless a command of the shell could be run in a checkout."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(*arguments):
        parse(*arguments)
        raise Understood

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)

    def function(command: str) -> None:
        program, *arguments = shlex.split(command)
        if program == "specdec":
            with pytest.raises(Understood):
                cli.main(arguments)
        elif program == "python" and arguments[0] == "-m":
            assert arguments[1] in INSTALLED or importlib.util.find_spec(arguments[1])
        elif program == "python":
            assert (ROOT / arguments[0]).is_file()
        elif program == "pip":
            extras = re.findall(r"\[(.*)\]", command)
            assert arguments[0] == "install" and set(extras) <= set(
                PROJECT["optional-dependencies"]
            )
        elif arguments[:1] == ["build"] and program == "docker":
            assert arguments[-1] == "."
            assert set(re.findall(r"--build-arg (\w+)=", command)) <= arguments_of_the_image()
        elif arguments[:1] == ["run"] and program == "docker":
            function("specdec " + command.partition(" specdec:")[2].partition(" ")[2])
        else:
            assert os.access(ROOT / program, os.X_OK), command

    return function


def arguments_of_the_image() -> set[str]:
    return set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.M))


def jobs(file: Path) -> dict:
    return yaml.safe_load(file.read_text())["jobs"]


def commands(job: dict) -> list[str]:
    """The lines of a job's steps, one for each value of its matrix."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    matrix = job.get("strategy", {}).get("matrix", {})
    made = []
    for values in itertools.product(*matrix.values()):
        fill = {
            f"${{{{ matrix.{name} }}}}": value for name, value in zip(matrix, values, strict=True)
        }
        for line in lines:
            for name, value in fill.items():
                line = line.replace(name, value)
            made.append(line)
    return made


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, name, id=f"{file.stem}-{name}")
        for file in WORKFLOWS
        for name in jobs(file)
    ],
)
def test_each_command_of_a_workflow_exists(file, name, check):
    job = jobs(file)[name]
    lines = commands(job)
    assert lines and not [line for line in lines if "${{" in line]
    for line in lines:
        check(line)
    for step in job["steps"]:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/checkout@v4"))
        asked = step.get("with", {})
        assert asked.get("path", "dist/").rstrip("/") in MADE
        assert f">={asked.get('python-version', '3.11')}" == PROJECT["requires-python"]
        assert (ROOT / asked.get("cache-dependency-path", ".")).exists()


@pytest.mark.parametrize(
    "command",
    [
        "specdec decode --gin_files=demo.gin",
        "specdec nonesuch",
        "python scripts/pages/nonesuch.py site",
        "python -m nonesuch",
        'pip install -e ".[nonesuch]"',
        "docker build --build-arg NONESUCH=cuda --tag specdec:cuda .",
        "docker run --env A=b specdec:cuda decode --nonesuch",
        ".ci/nonesuch",
        "README.md",
    ],
)
def test_a_command_that_does_not_exist_is_seen(command, check):
    with pytest.raises((AssertionError, pytest.fail.Exception, SystemExit)):
        check(command)


def test_the_check_runs_on_changes_and_the_release_on_tags():
    check, release = map(yaml.safe_load, (file.read_text() for file in WORKFLOWS))
    assert check[ON].keys() == {"push", "pull_request"} and check["name"] == "check"
    assert commands(check["jobs"]["check"]) == [".ci/run"]
    assert release[ON]["push"] == {"tags": ["v*"]}
    for path in release[ON]["pull_request"]["paths"]:
        assert (ROOT / path).is_file()
    assert release["jobs"]["image"]["strategy"]["matrix"] == {"extra": ["hub", "cuda", "tpu"]}


def test_the_image_is_made_of_files_that_exist_and_are_sent():
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M)
    copied = {name for names in copies for name in names.split()}
    assert copied == sent and all((ROOT / name).exists() for name in copied)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert {*build["targets"]["wheel"]["packages"]} <= copied
    assert {*build["targets"]["wheel"]["force-include"]} <= copied
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= copied
    assert arguments_of_the_image() == {"PYTHON", "EXTRA"}
    assert re.findall(r"^ARG PYTHON=(\S+)", DOCKERFILE, re.M) == ["3.11"]
    assert {"hub", "cuda", "tpu"} <= set(PROJECT["optional-dependencies"])
    assert re.findall(r"^ENTRYPOINT (.*)", DOCKERFILE, re.M) == ['["specdec"]']
