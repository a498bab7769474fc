"""README's Python runs, and its claims about files hold: pytest tests/test_docs.py"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def block(heading: str) -> str:
    """The first fenced block under a heading."""
    section = README.split(f"\n## {heading}\n")[1]
    return re.search(r"```\w*\n(.*?)```", section, re.S)[1]


def test_the_python_block_runs(capsys):
    exec(compile(block("In Python"), "README.md", "exec"), {})
    assert "target calls" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:\w+/)+[\w.]+)`", README))))
def test_files_that_are_named_exist(name):
    assert (ROOT / name).exists()


def test_the_commands_are_where_newcomers_look():
    assert block("Quick start").startswith("pip install .\n")
    assert "pytest" in block("Tests")
