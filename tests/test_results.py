"""The measurements that are committed, and the tables made of them: pytest tests/test_results.py"""

from __future__ import annotations

import dataclasses
import glob
import json
import re
import shlex
from pathlib import Path

import pytest

from specdec import benchmark, cli

ROOT = Path(__file__).resolve().parents[1]
LINES = sorted((ROOT / "docs" / "results").glob("*.jsonl"))
PAGES = ("README.md", "docs/performance.md")
REPORT = re.compile(r"<!-- specdec (report .*?) -->\n(.*?)<!-- end of report -->", re.S)
KINDS = {"mode": benchmark.Generation, "split": benchmark.Elsewhere, "part": benchmark.Timing}


@pytest.mark.parametrize("path", LINES, ids=lambda path: path.stem)
def test_figures_are_those_of_the_lines(path):
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        records.append(next(kind for name, kind in KINDS.items() if name in fields)(**fields))
    written = json.loads(Path(f"{path}.summary.json").read_text(encoding="utf-8"))
    floor = written["baseline"]["floor"] * written["baseline"]["bandwidth"]
    summary = benchmark.summarize(
        records,
        gamma=written["run"]["gamma"],
        same_output=written["identical"] is not None,
        step_bytes=round(floor),
    )
    again = json.loads(json.dumps(dataclasses.asdict(summary)))
    assert again == {name: written[name] for name in again}


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_what_the_command_prints(page, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    reports = REPORT.findall((ROOT / page).read_text(encoding="utf-8"))
    assert reports, "the page has a table between its marks"
    for command, shown in reports:
        words = [sorted(glob.glob(word)) or [word] for word in shlex.split(command)]
        assert cli.main([name for names in words for name in names]) == 0
        assert capsys.readouterr().out.strip() == shown.strip()


def test_nothing_of_the_machine_is_in_them():
    for path in filter(Path.is_file, (ROOT / "docs" / "results").rglob("*")):
        assert not re.search(r"/tmp/|/home/|/root/|/work/", path.read_text(encoding="utf-8")), path
