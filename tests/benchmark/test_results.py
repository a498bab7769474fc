"""The measurements that are committed, and the tables made of them: pytest tests/benchmark"""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest

from specdec import benchmark
from specdec.types import Part

ROOT = Path(__file__).resolve().parents[2]
LINES = sorted((ROOT / "docs" / "results").glob("*.jsonl"))
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_tables.py"))


def figures(text: str) -> dict:
    """Of a summary, with 12 digits: the last ones depend on the order in which NumPy adds."""
    return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.12g}"))


@pytest.mark.parametrize("path", LINES, ids=lambda path: path.stem)
def test_figures_are_those_of_the_lines(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    written = figures(Path(f"{path}.summary.json").read_text(encoding="utf-8"))
    floor = written["baseline"]["floor"] * written["baseline"]["bandwidth"]
    parts = [Part(*one) for one in written["prediction"]["parts"]]
    summary = benchmark.summarize(
        map(benchmark.record, map(json.loads, lines)),
        parts=lambda drafted: parts,  # lengths do not vary
        gamma=written["run"]["gamma"],
        same_output=written["identical"] is not None,
        exact=written["exact"],
        step_bytes=round(floor),
    )
    again = figures(json.dumps(dataclasses.asdict(summary)))
    assert again == {name: written[name] for name in again}


@pytest.mark.parametrize("page", SCRIPT["PAGES"])
def test_tables_are_what_the_command_prints(page):
    reports = SCRIPT["REPORT"].findall((ROOT / page).read_text(encoding="utf-8"))
    assert reports, "the page has a table between its marks"
    for _, command, shown, _ in reports:
        assert SCRIPT["printed"](command) == shown


def test_nothing_of_the_machine_is_in_them():
    for path in filter(Path.is_file, (ROOT / "docs" / "results").rglob("*")):
        assert not re.search(r"/tmp/|/home/|/root/|/work/", path.read_text(encoding="utf-8")), path
