"""Each mistake is one line, exit code 2, and nothing is harmed: pytest tests/cli/test_mistakes.py

The table is mistakes.txt, by kind. Its command lines go through the real entry point, in this
process. None of them may read parameters, unless the mistake is in the parameters themselves.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import mistakes
import pytest
import yard as yards

from specdec import checkpoints, cli

TABLE = {
    f"{kind}: {name}": case
    for kind, cases in mistakes.KINDS.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def yard(tmp_path_factory):
    folder = yards.make(tmp_path_factory.mktemp("yard"))
    before = _state(folder.rglob("*"))
    yield folder
    assert _state(folder.rglob("*")) == before, "a mistake has harmed a file"


@pytest.fixture
def run(yard, tmp_path, monkeypatch, capsys):
    """Runs a case; returns the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(case):
        places = {"YARD": yard, "OUT": tmp_path}
        argv = [_filled_in(arg, places) for arg in case.argv]
        stdin = io.TextIOWrapper(io.BytesIO(case.stdin), "utf-8")
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if not case.late:
                patch.setattr(checkpoints, "load", lambda *_, **__: pytest.fail("long work"))
            patch.setattr("sys.stdin", stdin)
            try:
                code = cli.main(argv)
            except SystemExit as stopped:  # of the flags
                code = stopped.code
        return code, *capsys.readouterr()

    return run


def _filled_in(arg, places):
    for name, folder in places.items():
        arg = re.sub(rf"\b{name}\b", str(folder), arg)
    return arg


def _state(files):
    """Sizes, and moments of the last change."""
    found = ((os.fspath(file), file.stat()) for file in files)
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found}


ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "mistakes.md"


def test_the_page_has_the_table(run, yard, tmp_path):
    """Kind, how many cases, and what the first one of them says."""
    rows = []
    for kind, cases in mistakes.KINDS.items():
        line = run(next(iter(cases.values())))[2].strip()
        for folder, name in ((yard, "DIR"), (tmp_path, "OUT"), (ROOT, "specdec")):
            line = line.replace(str(folder), name)
        line = line.replace("`", "'")
        rows.append(f"| {kind} | {len(cases)} | `{line}` |")
    rows.append(f"| **all** | **{len(TABLE)}** | |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(encoding="utf-8"), f"{PAGE.name} should have\n{table}"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.ci] * (not case.first))
        for name, case in TABLE.items()
    ],
)
def test_a_mistake_is_one_line_and_harms_nothing(run, yard, tmp_path, case):
    before = _state(os.scandir(yard))
    code, out, err = run(case)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("specdec: ") and "; " in line
    assert re.search(case.says, line)
    assert _state(os.scandir(yard)) == before
    assert not list(tmp_path.iterdir())
