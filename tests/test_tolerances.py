"""Absolute tolerances have reasons, and comparisons margins: pytest tests/test_tolerances.py

A tolerance that is a number has a comment on its statement's lines or right above. One that has a
name has its reason where the name is given (`tolerances.py`, or the same file).

Two numbers that should be equal are compared by `pytest.approx` or `assert_allclose`, so that a run
knows the margin of the comparison (`margins.py`). An assertion that a difference is below a small
number would have none.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import margins
import numpy as np
import pytest
import tolerances as shared_tolerances

TESTS = Path(__file__).parent
SMALL = 1e-3  # a bound up to this is one of rounding
MAY_TOLERATE = re.compile(r"\b(atol|abs)\s*=|<")


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


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def without_reason(source: str) -> list[int]:
    """The lines of tolerances that nothing is said about."""
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {word.start[0] for word in words if word.type == tokenize.COMMENT}
    lines, bare = source.splitlines(), set()
    for statement in nodes(source):
        if not isinstance(statement, ast.stmt) or hasattr(statement, "body"):
            continue
        first, last = statement.lineno, statement.end_lineno or 0
        if not MAY_TOLERATE.search("\n".join(lines[first - 1 : last])):
            continue
        if comments.isdisjoint(range(first - 1, last + 1)):
            found = [one for node in ast.walk(statement) for one in tolerances(node)]
            bare.update(one.lineno for one in found)
    return sorted(bare)


def without_margin(source: str) -> list[int]:
    """The lines that compare numbers and do not record a margin."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Assert):
            found += [x.lineno for x in ast.walk(node.test) if is_small_difference(x)]
        if isinstance(node, ast.Attribute) and node.attr in ("allclose", "isclose"):
            found.append(node.lineno)
    return sorted(found)


def is_small_difference(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[-1], ast.Lt | ast.LtE):
        return False
    calls = [x.func for x in ast.walk(node.left) if isinstance(x, ast.Call)]
    of_difference = any(getattr(x, "attr", getattr(x, "id", "")) == "abs" for x in calls)
    bound = list(ast.walk(node.comparators[-1]))
    names = [x.id for x in bound if isinstance(x, ast.Name)]
    if any(name.endswith(("TOLERANCE", "DISTANCE")) for name in names):
        return True  # whatever is compared
    named = any(hasattr(shared_tolerances, name) for name in names)
    return of_difference and (named or any(is_number(x) and x.value <= SMALL for x in bound))


def sources() -> dict[str, str]:
    return {str(path.relative_to(TESTS)): path.read_text() for path in TESTS.rglob("*.py")}


def test_every_tolerance_has_a_reason():
    bare = {name: lines for name, source in sources().items() if (lines := without_reason(source))}
    assert not bare, "lines that tolerate a number and do not say why"


def test_every_comparison_has_a_margin():
    bare = {name: lines for name, source in sources().items() if (lines := without_margin(source))}
    assert not bare, "lines that compare numbers; use pytest.approx or np.testing.assert_allclose"


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
def test_the_rule_of_reasons_sees_what_it_is_for(source, lines):
    assert without_reason(source) == lines


@pytest.mark.parametrize(
    "source, lines",
    [
        ("assert np.abs(x - y).max() < 1e-5", [1]),
        ("assert abs(x - y) <= 2 * LOGITS", [1]),
        ("assert np.allclose(x, y)", [1]),
        ("assert far(x) < TOLERANCE", [1]),
        ("assert x <= 2 * T5X_DISTANCE[name][0]", [1]),
        ("assert x == pytest.approx(y)", []),
        ("assert abs(x - y) < 0.1", []),
        ("assert p_value < 1e-9", []),
        ("near = abs(x - y) < 1e-5", []),
    ],
)
def test_the_rule_of_margins_sees_what_it_is_for(source, lines):
    assert without_margin(source) == lines


def test_a_margin_is_the_largest_share_of_what_is_tolerated():
    found, expected = [1.0, 2.0, np.inf, np.nan], [1.5, 2.0, np.inf, np.nan]
    assert margins.margin(found, expected, atol=2.0) == 0.25  # powers of two
    assert margins.margin(found, expected, rtol=0.5, atol=0.25) == 0.5  # so too
    assert margins.margin(1.0, 1.0) == 0.0
    assert margins.margin(1.0, 2.0) == np.inf


@pytest.mark.parametrize("compare", ["approx", "approx of a list", "allclose"])
def test_comparisons_record_their_margins(monkeypatch, compare):
    monkeypatch.setattr(margins, "largest", {})
    if compare == "approx":
        assert 1.25 == pytest.approx(1.0, abs=1.0)  # a power of two
    elif compare == "approx of a list":
        assert [1.0, 1.25] == pytest.approx([1.0, 1.0], abs=1.0)  # the same
    else:
        np.testing.assert_allclose([1.0, 1.25], 1.0, rtol=0, atol=1.0)  # the same
    ((place, value),) = margins.largest.items()
    assert place.startswith("tests/test_tolerances.py:") and place.endswith("_their_margins")
    assert value == 0.25
    assert 3.0 != pytest.approx(1.0, abs=1.0)  # is no comparison of equal numbers
    assert margins.tightest() == [(place, 0.25)]
