"""Absolute tolerances of the tests have their reasons: pytest tests/test_tolerances.py

One that is a number has a comment on its statement's lines or right above. One that has a name has
its reason where the name is given (`tolerances.py`, or the same file).
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SMALL = 1e-3  # a bound up to this is one of rounding


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def tolerances(node: ast.AST) -> list[ast.expr]:
    """The numbers that a call or a comparison tolerates."""
    if isinstance(node, ast.Call):
        found = [x.value for x in node.keywords if x.arg in ("atol", "abs")]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.Lt | ast.LtE):
        last = node.comparators[-1]
        found = [last] if is_number(last) and last.value <= SMALL else []  # type: ignore[attr-defined]
    else:
        found = []
    return [number for one in found for number in ast.walk(one) if is_number(number)]


def without_reason(source: str) -> list[int]:
    """The lines of tolerances that nothing is said about."""
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {word.start[0] for word in words if word.type == tokenize.COMMENT}
    bare = set()
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.stmt) or hasattr(statement, "body"):
            continue
        lines = range(statement.lineno - 1, statement.end_lineno + 1)  # type: ignore[operator]
        if comments.isdisjoint(lines):
            found = [one for node in ast.walk(statement) for one in tolerances(node)]
            bare.update(one.lineno for one in found)
    return sorted(bare)


def test_every_tolerance_has_a_reason():
    files = {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}
    bare = {name: lines for name, source in files.items() if (lines := without_reason(source))}
    assert not bare, "lines that tolerate a number and do not say why"


@pytest.mark.parametrize(
    "source, lines",
    [
        ("assert f(x) == pytest.approx(1, abs=1e-5)", [1]),
        ("assert f(x) == pytest.approx(1, abs=1e-5)  # float32", []),
        ("# float32\nassert f(x) < 1e-5", []),
        ("# float32\n\nassert f(x) < 1e-5", [3]),
        ("assert f(x) < 1e-5 * y", []),  # relative
        ("# Not of the next.\nx = 1\nassert_close(\n    x,\n    atol=2 * 1e-4,\n)", [5]),
        ("assert_close(x, y, atol=LOGITS)", []),
        ("assert x < 0.5", []),
    ],
)
def test_the_rule_sees_what_it_is_for(source, lines):
    assert without_reason(source) == lines
