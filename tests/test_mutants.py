"""Mutants of a small module, and their page: pytest tests/test_mutants.py"""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "checks" / "mutate.py"))
SOURCE = '''
"""About 1 module."""
SIZE: int = 3

@cache(8)
def f(x: Literal[1], most=False):
    """Returns 2."""
    if x:
        raise ValueError(f"{x} is {1}")
    total = max(x, 1) - 2
    total = -total
    show(f"{total} of {SIZE}", end=".", strict=True)
    write(1.5)
    other = x is None or x < total
    return other
'''


def test_all_changes_of_a_small_module():
    found = [(one.function, one.before, one.after) for one in SCRIPT["mutants"](SOURCE, "m.py")]
    assert sorted(found) == sorted(
        [
            ("", "3", "4"),
            ("f", "False", "True"),
            ("f", "x", "not x"),
            ("f", "max(x, 1) - 2", "max(x, 1) + 2"),
            ("f", "max(x, 1) - 2", "max(x, 1)"),
            ("f", "max(x, 1)", "min(x, 1)"),
            ("f", "1", "2"),
            ("f", "2", "3"),
            ("f", "-total", "total"),
            ("f", "total = max(x, 1) - 2\ntotal = -total", "total = -total\ntotal = max(x, 1) - 2"),
            ("f", "f'{total} of {SIZE}'", "f'{SIZE} of {total}'"),
            (
                "f",
                "show(f'{total} of {SIZE}', end='.', strict=True)",
                "show(f'{total} of {SIZE}', strict=True)",
            ),
            (
                "f",
                "total = -total\nshow(f'{total} of {SIZE}', end='.', strict=True)",
                "show(f'{total} of {SIZE}', end='.', strict=True)\ntotal = -total",
            ),
            (
                "f",
                "show(f'{total} of {SIZE}', end='.', strict=True)\nwrite(1.5)",
                "write(1.5)\nshow(f'{total} of {SIZE}', end='.', strict=True)",
            ),
            ("f", "1.5", "2.5"),
            ("f", "x is None or x < total", "x is None and x < total"),
            ("f", "x is None", "x is not None"),
            ("f", "x < total", "x <= total"),
        ]
    )


def test_each_change_is_compiled_alone():
    source = "def f(x):\n    x = x + 2\n    return [x * 3, x + 2]\n"
    results = set()
    for one in SCRIPT["mutants"](source, "m.py"):
        made: dict = {}
        exec(SCRIPT["code"](source, one, "m.py"), made)
        results.add((one.before, one.after, one.nth, *made["f"](5)))
    assert results == {
        ("x + 2", "x - 2", 0, 9, 5),
        ("x + 2", "x", 0, 15, 7),
        ("2", "3", 0, 24, 10),
        ("x * 3", "x + 3", 0, 10, 9),
        ("3", "4", 0, 28, 9),
        ("x + 2", "x - 2", 1, 21, 5),
        ("x + 2", "x", 1, 21, 7),
        ("2", "3", 1, 21, 10),
    }


def test_the_page_is_what_the_script_writes():
    assert SCRIPT["page"](SCRIPT["read"]()) == SCRIPT["PAGE"].read_text(encoding="utf-8")
