"""Bugs of one kind, planted in every loop: pytest tests/decoding/test_planted_in_every_loop.py

`plants.toml` has the bugs, and with each the loops whose texts it changes. The check of each of
these loops, which compares texts with their definition, must fail. A loop in which a kind
of bug has no place is in NOWHERE, with the reason. docs/reference/mistakes.md has the table.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import by_definition
import pytest
from planting import planted
from test_several_paths import drafting, measured

ROOT = Path(__file__).parents[2]


class Loop(NamedTuple):
    """A loop that decodes: the check of its texts, its own modules, and the test of the check."""

    check: Callable[[], None]
    modules: tuple[str, ...]
    test: str


LOOPS = {
    "plain": Loop(
        by_definition.check_plain, ("loop", "states"), "test_loop.py::test_texts_are_as_defined"
    ),
    "paths": Loop(
        by_definition.check_paths,
        ("several_paths", "loop", "states"),
        "test_several_paths.py::test_texts_are_as_defined",
    ),
    "tree": Loop(
        by_definition.check_tree,
        ("several_paths", "loop", "states"),
        "test_several_paths.py::test_texts_are_as_defined",
    ),
    "refilled": Loop(
        by_definition.check_refilled,
        ("refilling", "rows"),
        "test_refilling.py::test_texts_are_as_defined",
    ),
    "beams": Loop(
        by_definition.check_beams,
        ("beam_search",),
        "test_beam_search.py::test_beams_are_as_defined",
    ),
    "draft beams": Loop(
        by_definition.check_draft_beams,
        ("beam_search", "draft_beams"),
        "test_beam_search.py::test_beams_are_as_defined",
    ),
    "replay": Loop(
        by_definition.check_replay,
        ("replay",),
        "test_replay.py::test_probabilities_are_as_defined",
    ),
    "scoring": Loop(
        by_definition.check_scoring, ("forcing",), "test_forcing.py::test_scores_are_as_defined"
    ),
}


class Plant(NamedTuple):
    """A bug.

    Attributes:
      kind: one of KINDS.
      what: the bug in a few words.
      file: where it is planted, below specdec/.
      before: the source there.
      after: what replaces it.
      loops: those whose check sees it.
    """

    kind: str
    what: str
    file: str
    before: str
    after: str
    loops: tuple[str, ...]


PLANTS = [
    Plant(kind, what, file, before, after, tuple(loops.split(", ")))
    for kind, files in tomllib.loads(Path(__file__).with_name("plants.toml").read_text()).items()
    for file, bugs in files.items()
    for what, (before, after, loops) in bugs.items()
]
NOWHERE = {
    ("positions", "tree"): "a greedy rule reads no positions",
    ("finiteness", "replay"): "texts that fail raise before they are replayed",
    ("rewinds", "scoring"): "one call scores a whole text",
    ("keys", "tree"): "a greedy tree draws nothing",
    ("keys", "beams"): "beam search draws nothing",
    ("keys", "draft beams"): "beam search draws nothing",
    ("keys", "scoring"): "scoring draws nothing",
}
WITHOUT = {
    "program": "its loops call `loop.step` and nothing else",
    "row_bits": "its calls are measured, and decode no text",
}
KINDS = [*dict.fromkeys(plant.kind for plant in PLANTS)]


def check_law() -> None:
    """Compares the outputs of several drawn paths with their enumerated distribution."""
    assert measured(drafting(3)).passed


CHECKS = {("keys", "paths"): check_law}  # of texts that have a law and no definition


def some_cells() -> list[tuple[Plant, str]]:
    """Returns few cells in which each kind of bug and each loop occurs; the others are slow."""
    every = [(plant, name) for plant in PLANTS for name in plant.loops]
    chosen, missing = [], {*KINDS, *LOOPS}
    while missing:
        chosen.append(max(every, key=lambda cell: len({cell[0].kind, cell[1]} & missing)))
        missing -= {chosen[-1][0].kind, chosen[-1][1]}
    return chosen


OFTEN = some_cells()
CELLS = [
    pytest.param(
        plant,
        name,
        id=f"{plant.kind} {plant.file} {plant.what} {name}",
        marks=[pytest.mark.slow] * ((plant, name) not in OFTEN),
    )
    for plant in PLANTS
    for name in plant.loops
]


def module_of(file: str) -> ModuleType:
    return importlib.import_module("specdec." + file.removesuffix(".py").replace("/", "."))


@pytest.mark.planted
@pytest.mark.parametrize("plant, name", CELLS)
def test_each_loop_sees_each_bug(plant, name):
    check = CHECKS.get((plant.kind, name), LOOPS[name].check)
    with planted(module_of(plant.file), plant.before, plant.after):
        with pytest.raises((AssertionError, TypeError, ValueError)):  # JAX may refuse the shapes
            check()


def test_each_bug_has_one_place():
    for plant in PLANTS:
        assert inspect.getsource(module_of(plant.file)).count(plant.before) == 1, plant


def test_each_kind_is_planted_in_each_loop_or_has_no_place_there():
    planted_in = {(plant.kind, name) for plant in PLANTS for name in plant.loops}
    assert not planted_in & NOWHERE.keys()
    assert planted_in | NOWHERE.keys() == {(kind, name) for kind in KINDS for name in LOOPS}


def has_a_loop(source: str) -> bool:
    """Whether a module runs a loop of unknown length or feeds a target."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.While):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("while_loop", "fori_loop", "scan"):
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("target.decode"):
            return True
    return False


def test_each_file_that_has_a_loop_is_in_a_column():
    columns = {name for one in LOOPS.values() for name in one.modules}
    folder = ROOT / "specdec" / "decoding"
    found = {file.stem for file in folder.glob("*.py") if has_a_loop(file.read_text())}
    assert found - WITHOUT.keys() <= columns, (
        "give each loop a check and a row for each kind of bug"
    )
    assert columns <= {Path(plant.file).stem for plant in PLANTS}


def table() -> str:
    """Returns the table of docs/reference/mistakes.md."""
    heads = ["kind", "what is planted", "in", *LOOPS]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|---|{':---:|' * len(LOOPS)}"]
    for plant in PLANTS:
        cells = ["seen" if name in plant.loops else "" for name in LOOPS]
        lines.append(f"| {plant.kind} | {plant.what} | `{plant.file}` | {' | '.join(cells)} |")
    lines += ["", "| loop | the test that sees its bugs |", "|---|---|"]
    lines += [f"| {name} | `tests/decoding/{one.test}` |" for name, one in LOOPS.items()]
    return "\n".join(lines)


def test_the_page_has_this_table():
    for one in LOOPS.values():
        file, name = one.test.split("::")
        assert f"def {name}(" in Path(__file__).with_name(file).read_text()
    assert table() in (ROOT / "docs" / "reference" / "mistakes.md").read_text()
