"""docs/explanation/methods.md places every class: pytest tests/test_methods.py"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from specdec import drafters, schedules, verifiers

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "explanation" / "methods.md").read_text()
SECTIONS = {
    drafters: "Where drafts come from",
    verifiers: "Which are kept",
    schedules: "How many are proposed",
}


def rows(section: str) -> list[dict[str, str]]:
    """The rows of a section's table, by column."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


@pytest.mark.parametrize("module", SECTIONS, ids=lambda module: module.__name__)
def test_every_class_has_its_place(module):
    classes = {name for name in module.__all__ if dataclasses.is_dataclass(getattr(module, name))}
    named = [re.findall(r"`(\w+)`", row["here"]) for row in rows(SECTIONS[module])]
    assert sorted(sum(named, [])) == sorted(classes)


def test_every_method_is_placed_on_every_axis():
    for section in SECTIONS.values():
        for row in rows(section):
            assert all(row.values()), row


def test_what_is_exact_says_so():
    for row in rows("Which are kept"):
        (name,) = re.findall(r"`(\w+)`", row["here"])
        verifier = getattr(verifiers, name)
        assert row["law"].startswith("exact") == verifier.exact
        assert (row["shared noise"] == "yes") == (getattr(verifier, "shared_noise", False) is True)
        only = "temperature 0 only" in row["law"]
        assert only == (getattr(verifier, "greedy_only", False) is True)
