"""Several paths and rows, compiled: pytest tests/predict/test_compiled_rows.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec.predict.hardware import GIB

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "compiled_paths"
PAGE = ROOT / "docs" / "log" / "tpu-log.md"


def of_paths(found: dict[str, Any]) -> list[str]:
    """Returns the cells of a number of paths; its times are with those of layers."""
    costs, memory = found["with_layers"], found["memory"]
    width = max(int(name.split()[1]) for name in found["programs"] if name.startswith("target "))
    return [
        found["topology"],
        str(width),
        f"{memory['total'] / GIB:.2f}",
        f"{memory['limit'] / GIB:.2f}",
        f"{1e3 * costs['target']:.2f}",
        f"{1e3 * costs['iteration']:.2f}",
        f"{costs['iteration'] / costs['target']:.3f}",
    ]


def of_rows(found: dict[str, Any]) -> list[str]:
    memory, costs = found["memory"], found.get("with_layers")
    times = ["", "", ""]
    if costs:
        step, iteration = costs["target"], costs["iteration"]
        times = [f"{1e3 * step:.3f}", f"{1e3 * iteration:.3f}", f"{iteration / step:.2f}"]
    sizes = (f"{memory[name] / 2**20:.1f}" for name in ("caches", "total"))
    return [found["topology"], str(found["rows"]), *sizes, *times]


def copied_caches(found: dict[str, Any], everywhere: bool) -> list[str]:
    """Returns the copied arrays of a cache: with all its rows and all its slots."""
    program = found["programs"]["decode"]
    slots = {found["outputs"] + found["gamma"], found["inputs"]}
    return [
        shape
        for loop, copies in program["copies"].items()
        for shape in copies
        if (loop or everywhere) and is_cache(shape, found["rows"], slots)
    ]


def is_cache(shape: str, rows: int, slots: set[int]) -> bool:
    sizes = [int(x) for x in shape.partition("[")[2].rstrip("]").split(",") if x.isdigit()]
    return len(sizes) == 4 and sizes[0] == rows and bool(slots & set(sizes[2:]))


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_the_tables_are_those_of_the_records_and_no_cache_is_copied(file):
    (found,) = json.loads(file.read_text(encoding="utf-8"))["topologies"]
    pair, kind, count, *_ = file.stem.split("-")
    cells = of_paths(found) if kind == "paths" else of_rows(found)
    if kind == "paths":
        found["gamma"] *= int(count)  # the nodes, which have a slot each
    assert f"| {pair}, {kind} {count} | {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")
    assert not copied_caches(found, everywhere=kind == "refilled")
    program = found["programs"]["decode"]
    assert program["host_transfers"] == program["dynamic_shapes"] == 0


def test_a_copied_cache_is_seen():
    copies = {"": {"f32[8,2,40,4]": {}}, "decode": {"f32[8,2,24,4]": {}, "f32[8,2,3,4]": {}}}
    program = {"decode": {"copies": copies}}
    found = {"programs": program, "outputs": 20, "gamma": 4, "inputs": 40, "rows": 8}
    assert copied_caches(found, everywhere=False) == ["f32[8,2,24,4]"]
    assert len(copied_caches(found, everywhere=True)) == 2
