"""A plugin that measures a run of the tests: how close its comparisons were, and its memory.

The *margin* of a comparison of numbers is the largest difference divided by the difference that is
tolerated. Another processor sums in another order, and differences are somewhat larger there. So a
comparison with a margin above 0.5 is too tight, although it holds here.

A run ends with the tightest comparisons and the peak memory of its processes. With `--limits` it
fails if one of them is above its limit.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MARGIN = 0.5
GIGABYTES = 2.5  # of each process
SHOWN = 10  # places
TESTS = Path(__file__).parent

largest: dict[str, float] = {}  # margins by place
peaks: dict[str, float] = {}  # gigabytes by process

_Number = type(pytest.approx(1.0))  # what `approx` of anything else is made of
_equals = _Number.__eq__
_assert_allclose = np.testing.assert_allclose


def margin(found: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> float:
    """Returns the largest |found - expected| / (atol + rtol |expected|) of finite numbers."""
    found, expected = np.broadcast_arrays(np.asarray(found, float), np.asarray(expected, float))
    counts = np.isfinite(found) & np.isfinite(expected) & (found != expected)
    found, expected = found[counts], expected[counts]
    with np.errstate(divide="ignore"):
        margins = np.abs(found - expected) / (atol + rtol * np.abs(expected))
    return float(np.max(margins, initial=0.0))


def keep(value: float) -> None:
    """Keeps the margin of a comparison, if it is the largest of its place.

    The place is the innermost function of a test file that is running, and its line.
    """
    frame: Any = sys._getframe(1)
    while frame and not Path(frame.f_code.co_filename).name.startswith("test_"):
        frame = frame.f_back
    if frame:
        file = Path(frame.f_code.co_filename).relative_to(TESTS.parent)
        place = f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
        largest[place] = max(largest.get(place, 0.0), value)


def assert_allclose(actual, desired, rtol=1e-7, atol=0, *args, **options):
    _assert_allclose(actual, desired, rtol, atol, *args, **options)
    keep(margin(actual, desired, rtol, atol))


def equals(self, actual) -> bool:
    equal = _equals(self, actual)
    if equal and isinstance(actual, int | float | np.number):  # one of an array's comes here too
        keep(margin(actual, self.expected, atol=float(self.tolerance)))
    return equal


def pytest_addoption(parser):
    limits = f"fail if a margin is above {MARGIN} or a process has held over {GIGABYTES} GB"
    parser.addoption("--limits", action="store_true", help=limits)


def pytest_configure():
    np.testing.assert_allclose = assert_allclose
    _Number.__eq__ = equals


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Takes what one of several processes has measured."""
    found = getattr(node, "workeroutput", {"margins": {}, "peaks": {}})  # one that died has none
    for place, value in found["margins"].items():
        largest[place] = max(largest.get(place, 0.0), value)
    peaks.update(found["peaks"])


def pytest_sessionfinish(session):
    unit = 1e6 if sys.platform == "linux" else 1e9  # kilobytes there, elsewhere bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    if hasattr(session.config, "workeroutput"):
        name = session.config.workerinput["workerid"]
        session.config.workeroutput |= {"margins": largest, "peaks": {name: peak}}
        return
    if not peaks:
        peaks["the process"] = peak
    if session.config.option.limits and beyond() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def beyond() -> list[str]:
    """Returns a line for each margin and each process above its limit."""
    found = [f"{place}: margin {x:.2f}" for place, x in tightest() if x > MARGIN]
    return found + [f"{name}: {x:.2f} GB" for name, x in peaks.items() if x > GIGABYTES]


def tightest() -> list[tuple[str, float]]:
    return sorted(largest.items(), key=lambda item: -item[1])


def pytest_terminal_summary(terminalreporter):
    write = terminalreporter.write_line
    if largest:
        terminalreporter.section("tightest comparisons: difference / tolerance")
        for place, value in tightest()[:SHOWN]:
            write(f"{value:.2f} {place}")
    terminalreporter.section("peak memory")
    for name, value in sorted(peaks.items()):
        write(f"{value:.2f} GB {name}")
    if faults := beyond():
        terminalreporter.section(f"above the limits of {MARGIN} and {GIGABYTES} GB")
        for fault in faults:
            write(fault)
