"""The pages of methods place every class and quote the log: pytest tests/test_methods.py"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import specdec.models.t5
from specdec import drafters, schedules, training, verifiers
from specdec.decoding import beam_plan

DOCS = Path(__file__).resolve().parents[1] / "docs"
OVERVIEW = DOCS / "explanation" / "methods.md"
GROUPS = {page.stem: page for page in sorted((DOCS / "explanation" / "methods").glob("*.md"))}
PLACED = {
    drafters: ("model-drafters", "copying-drafters", "block-drafters", "early-exit"),
    verifiers: ("verification", "lossy-verification"),
    schedules: ("draft-lengths",),
}
EXACTNESS = [OVERVIEW, *map(GROUPS.__getitem__, PLACED[verifiers])]
OTHERS = {"Calm": specdec.models.t5, "BeamPlan": beam_plan, "Align": training}
LOGS = [*(DOCS / "log").glob("*.md")]
INTERVAL = re.compile(r"[+-]?[\d.]+%? \([+-]?[\d.]+ to [+-]?[\d.]+\)|[+-][\d.]+ ± [\d.]+")


def rows(page: Path) -> list[dict[str, str]]:
    """Returns the rows of a page's tables whose header has a class, by column."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.M):
        lines = [line.strip("|").split("|") for line in table.splitlines()]
        head, _, *body = [[cell.strip() for cell in line] for line in lines]
        if "class" in head:
            found += [dict(zip(head, row, strict=True)) for row in body]
    return found


def named(row: dict[str, str]) -> str:
    """Returns the class of a row, the first name in its cell."""
    return re.findall(r"`(\w+)`", row["class"])[0]


def placed(module) -> list[dict[str, str]]:
    return [row for name in PLACED[module] for row in rows(GROUPS[name])]


def classes(module) -> set[str]:
    return {name for name in module.__all__ if dataclasses.is_dataclass(getattr(module, name))}


@pytest.mark.parametrize("module", PLACED, ids=lambda module: module.__name__)
def test_every_class_has_its_place(module):
    assert sorted(map(named, placed(module))) == sorted(classes(module))


def test_the_overview_names_every_class():
    names = [named(row) for row in rows(OVERVIEW)]
    wanted = set.union(*map(classes, PLACED))
    assert set(names) == wanted | OTHERS.keys()
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"Autoregressive"}  # with a model of its own, an encoder, or a part
    assert all(hasattr(module, name) for name, module in OTHERS.items())


def test_every_method_is_placed_on_every_axis():
    for module in PLACED:
        for row in [*placed(module), *rows(OVERVIEW)]:
            assert all(row.values()), row


@pytest.mark.parametrize("page", EXACTNESS, ids=lambda page: page.stem)
def test_what_is_exact_says_so(page):
    for row in rows(page):
        if named(row) not in classes(verifiers):
            continue
        verifier = getattr(verifiers, named(row))
        assert row["law"].startswith("exact") == verifier.exact
        only = "temperature 0 only" in row["law"]
        assert only == (getattr(verifier, "greedy_only", False) is True)
        if page != OVERVIEW:
            shared = row.get("shared noise", "no") == "yes"
            assert shared == (getattr(verifier, "shared_noise", False) is True)


def test_a_link_of_the_overview_leads_to_the_page_of_the_class():
    for row in rows(OVERVIEW):
        page = re.search(r"\(methods/([\w-]+)\.md\)", row["method"])[1]
        text = GROUPS[page].read_text(encoding="utf-8")
        assert f"`{named(row)}`" in text, row


@pytest.mark.parametrize("page", [OVERVIEW, *GROUPS.values()], ids=lambda page: page.stem)
def test_quoted_intervals_are_in_a_log(page):
    """A figure with its interval is copied from a log, whose tables other tests compare."""
    logs = " ".join(log.read_text(encoding="utf-8") for log in LOGS)
    quoted = INTERVAL.findall(" ".join(page.read_text(encoding="utf-8").split()))
    assert [figure for figure in quoted if figure not in logs] == []
