"""README's Python runs, and its claims about files hold: pytest tests/test_docs.py"""

from __future__ import annotations

import argparse
import doctest
import importlib
import json
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

from specdec import cli
from specdec.common import demo
from specdec.integrations.interactive import InteractiveModel
from specdec.testing import check_drafter, check_verifier

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def block(heading: str) -> str:
    """The first fenced block under a heading."""
    section = README.split(f"\n## {heading}\n")[1]
    return re.search(r"```\w*\n(.*?)```", section, re.S)[1]


@pytest.fixture
def my_models(tmp_path, monkeypatch):
    """Two directories of checkpoints where README has them."""
    for name, role in (("my-t5", "target"), ("my-draft", "draft")):
        (tmp_path / name).symlink_to(demo.path(role))
    monkeypatch.chdir(tmp_path)


@pytest.mark.ci
def test_the_python_of_readme_runs(my_models, monkeypatch, capsys):
    """What takes minutes is left to `test_interactive.py`."""
    for name in ("bench", "verify"):
        monkeypatch.setattr(InteractiveModel, name, lambda model, texts: None)
    (code,) = blocks(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})
    assert "['Die Katze schläft.']" in capsys.readouterr().out


PARTS = ROOT / "docs" / "how-to" / "use-parts-in-python.md"


@pytest.mark.ci
def test_the_python_of_parts_runs(capsys):
    (code,) = blocks(PARTS, "python")
    exec(compile(code, PARTS.name, "exec"), {})
    assert "target calls" in capsys.readouterr().out


PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "demo" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", [x for x in PAGES if x != PARTS], ids=lambda page: page.stem)
def test_the_python_of_every_page_runs(page):
    """T5X's own names are given to the block that needs them."""
    for code in blocks(page, "python"):
        if "integrations.t5x" in code:
            pytest.importorskip("t5x.models", reason="the block is for T5X")
        exec(compile(code, page.name, "exec"), {})


class Parsed(Exception):
    """The command line was understood."""


def commands(page: Path) -> list[list[str]]:
    """The arguments of each `specdec ...` in the page's shell blocks."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    for name, value in re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", text, re.M):
        text = text.replace(f"${name}", value)
    lines = [shlex.split(line.split(" > ")[0], comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["specdec"]]


def made_by(command: list[str]) -> list[str]:
    """Returns the folders that a command writes, whose gin files later commands can read."""
    flags = dict(flag.split("=", 1) for flag in command if "=" in flag)
    made = [flags["--output_dir"]] if "--output_dir" in flags else []
    if command[:1] == ["distill"] and "--target" in flags:
        made.append(f"{flags['--target']}-drafter")
    return made


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_the_commands_of_every_page_are_understood(page, monkeypatch):
    """Their flags exist, and so do their gin files, unless an earlier command of the page makes
    them; nothing is run."""
    understood = argparse.ArgumentParser.parse_args

    def parse(*arguments):
        understood(*arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    made = []
    for command in commands(page):
        with pytest.raises(Parsed):
            cli.main(command)
        for file in re.findall(r"--gin_file=(\S+)", " ".join(command)):
            there = any((ROOT / folder / file).exists() for folder in ("gin", "configs", "."))
            assert there or str(Path(file).parent) in made, file
        made += made_by(command)


def test_there_are_commands_to_look_at():
    assert sum(len(commands(page)) for page in [ROOT / "README.md", *PAGES]) > 10


def modules_with_examples() -> list[str]:
    files = sorted((ROOT / "specdec").rglob("*.py"))
    paths = [file.relative_to(ROOT) for file in files if ">>> " in file.read_text()]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


# Their examples compile.
MARKS = {
    "specdec.integrations.interactive": pytest.mark.slow,
    "specdec.training.policy_gradient": pytest.mark.ci,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in modules_with_examples()],
)
def test_the_examples_of_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+/)+[\w.]+)`", README))))
def test_files_that_are_named_exist(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files(page):
    """The site has one folder, so its own test cannot see a wrong folder in a link."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)[^)\s]*\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_scripts_that_pages_name_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("demo*/*.md"), *ROOT.glob("docs/**/*.md")]
    pages += [*ROOT.glob("tests/golden/*.md"), *ROOT.glob("scripts/**/*.md")]
    named = {
        one for page in pages for one in re.findall(r"python (scripts/\S+\.py)", page.read_text())
    }
    assert len(named) > 15
    assert not [one for one in named if not (ROOT / one).exists()]


def test_the_first_figure_is_that_of_the_committed_measurement():
    file = ROOT / "docs" / "results" / "amd_epyc_avx512_2_cores" / "ende_t0.jsonl.summary.json"
    found = json.loads(file.read_text())
    speedup, texts = found["speedup"], found["texts"] * found["repeats"]
    lead = " ".join(README.split("\n![")[0].split())
    assert f"**{speedup['ratio']:.2f} times as fast**" in lead
    assert f"95 % interval {speedup['low']:.2f} to {speedup['high']:.2f}" in lead
    assert f"{found['identical']} of {texts} texts are the same" in lead


def test_the_commands_are_where_newcomers_look():
    assert block("Quick start").startswith("pip install .\n")
    assert "pytest" in block("Tests")


def test_nothing_is_installed_from_the_index_under_our_name():
    """The index has another project called specdec; ours is installed from its checkout."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "specdec").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    text = "\n".join(page.read_text() for page in pages)
    found = [line.split("#")[0] for line in re.findall(r"pip install [^`\n]*", text)]
    assert len(found) > 15
    for command in found:
        assert not re.search(r"(?<![\w/.-])specdec(-jax)?(?![\w/.-])", command), command


def test_the_page_of_gin_names_is_made_of_the_gin_files():
    made = runpy.run_path(str(ROOT / "scripts" / "pages" / "make_gin_names.py"))
    assert made["page"]() == made["FILE"].read_text(encoding="utf-8")


def test_the_page_of_interactive_model_is_made_of_its_signature():
    made = runpy.run_path(str(ROOT / "scripts" / "pages" / "make_interactive_page.py"))
    page = made["FILE"].read_text(encoding="utf-8")
    assert made["page"]() == page and len(page.split()) < 450


def test_readme_names_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (paragraph,) = re.findall(r"^.*Extras, as in .*?\n\n", README, re.M | re.S)
    assert set(project["optional-dependencies"]) <= set(re.findall(r"`(\w+)`", paragraph))


def test_readme_fits_four_screens():
    assert README.count("\n") <= 120


def test_no_two_pages_have_one_name():
    """The site has all of them in one folder."""
    names = [page.stem for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]]
    assert sorted(set(names)) == sorted(names)


def test_decisions_are_short():
    text = (ROOT / "docs" / "explanation" / "decisions.md").read_text()
    entries = re.split(r"^#+ ", text, flags=re.M)
    assert len(text.split()) <= 3600
    assert [entry.split("\n")[0] for entry in entries if len(entry.split()) > 120] == []


def test_pages_to_read_are_short():
    """Each figure stands in one place: reference or log have the tables."""
    folders = ("tutorials", "how-to", "explanation")
    pages = [page for name in folders for page in (ROOT / "docs" / name).rglob("*.md")]
    words = {page.stem: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert sum(words.values()) <= 21_750, sorted(words.items(), key=lambda item: -item[1])[:5]


@pytest.mark.ci
@pytest.mark.parametrize("number, name", [*enumerate(["Repeat", "RepeatOften", "OwnDraw"])])
def test_the_parts_of_the_page_on_drafters_are_right(number, name):
    """`RepeatOften` draws, and reports the probabilities that it draws from."""
    page, names = ROOT / "docs" / "how-to" / "write-a-drafter.md", {}
    exec(compile(blocks(page, "python")[number], page.name, "exec"), names)
    part = names[name]()
    check_verifier(part) if name == "OwnDraw" else check_drafter(part)
