"""Outputs that a killed command goes on with: pytest tests/test_records.py"""

from __future__ import annotations

import collections
import errno
import json
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import filelock
import pytest

from specdec.common import records
from specdec.common.gin_text import first_difference
from specdec.common.records import Lines, RecordsError

GIN = "# Parameters for A:\n# ====\nA.x = 1\nA.name = \\\n    'a b'\n"


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_torn_last_line_does_not_count(tmp_path):
    lines = Lines(tmp_path / "out.jsonl")
    assert list(lines) == []
    for number in range(3):
        lines.append({"number": number, "text": "ü\n"})
    whole = lines.path.read_bytes()
    for cut in (1, 2, len(whole) // 3):
        lines.path.write_bytes(whole[:-cut])
        assert [one["number"] for one in lines] == [0, 1]


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', ""])
def test_a_whole_line_that_is_no_object_is_named(tmp_path, line):
    path = tmp_path / "out.jsonl"
    path.write_text('{"a": 1}\n' + line + '\n{"a": 2}\n')
    with pytest.raises(RecordsError, match=r"out.jsonl, line 2, is no.* JSON .*; delete"):
        list(Lines(path))


def test_what_is_kept_may_be_the_files_own(tmp_path):
    """And floats are written as they were."""
    lines = Lines(tmp_path / "out.jsonl")
    for number in (0.1, 1e-300, 1e300):
        lines.append({"number": number})
    before = lines.path.read_text()
    lines.replace(lines)
    assert lines.path.read_text() == before
    lines.replace(one for one in lines if one["number"] < 0.01)
    assert list(lines) == [{"number": 1e-300}] and names(tmp_path) == [
        ".out.jsonl.lock",
        "out.jsonl",
    ]


def test_a_file_is_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    records.write(path, "old")

    def fails(*_):
        raise OSError("disk full")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fails)
            with pytest.raises(OSError, match="disk full"):
                records.write(path, "new")
        assert path.read_text() == "old" and names(tmp_path) == ["file"]
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    records.write(path, "newer")
    assert path.read_text() == "newer" and synced == [5]


def test_lines_belong_to_settings(tmp_path):
    path = tmp_path / "out.jsonl"
    Lines.of(path, GIN).append({"a": 1})
    assert list(Lines.of(path, GIN)) == [{"a": 1}]
    with pytest.raises(RecordsError) as error:
        Lines.of(path, GIN.replace("= 1", "= 2"))
    assert str(error.value) == (
        f"{path} was begun with A.x = 1, and now it is 2; take the settings of {path}.gin, or give "
        "another --output_file"
    )
    path.with_name("out.jsonl.gin").unlink()
    with pytest.raises(
        RecordsError, match="has no out.jsonl.gin next to it; give another --output"
    ):
        Lines.of(path, GIN)
    path.unlink()
    assert list(Lines.of(path, "")) == []


@pytest.mark.parametrize(
    "now, difference",
    [
        ("A.name = 'a b'\n\nA.x = 1\n", None),
        ("A.x = 1\nA.name = 'a c'\n", ("A.name", "'a b'", "'a c'")),
        ("A.x = 1\n", ("A.name", "'a b'", "not set")),
        (f"{GIN}A.y = 3\n", ("A.y", "not set", "3")),
        (f"{GIN}REFILL = False\ncli.Data.refill = %REFILL\nA.later = ()\n", None),
        (f"{GIN}DRAFTER/drafters.Autoregressive.view = %DRAFT_READS\n", None),
        (f"{GIN}REPETITION_PENALTY = 1.0\n", None),  # as in the installed gin files
        (f"{GIN}NO_REPEAT_NGRAM_SIZE = 3\n", ("NO_REPEAT_NGRAM_SIZE", "not set", "3")),
        (f"{GIN}REFILL = True\n", ("REFILL", "not set", "True")),
        (f"{GIN}# format of bench = 1\n", None),  # what says nothing is of version 1
        (f"{GIN}# format of bench = 2\n", ("format of bench", "1", "2")),
    ],
)
def test_gin_is_compared_as_settings(now, difference):
    assert first_difference(GIN, now) == difference


@pytest.mark.parametrize(
    "change, difference",
    [
        ({}, None),
        ({"threads": 1}, ("threads", 2, 1)),
        ({"gin": "A.x = 2\n", "threads": 1}, ("A.x", "1", "2")),
        ({"sizes": [1, 3]}, ("sizes", [1, 2], [1, 3])),
        ({"more": None}, None),
        ({"more": 0}, ("more", "not set", 0)),
        ({"model": {"layers": 2, "states_dim": None, "head": False}}, None),
        ({"model": {"layers": 2, "states_dim": 8}}, ("model.states_dim", "not set", 8)),
        ({"model": {"layers": 0}}, ("model.layers", 2, 0)),
        ({"model": {}}, ("model.layers", 2, "not set")),
        ({"target": [{"layers": 6, "head": False}, "a"]}, None),
        ({"target": [{"layers": 6}, "b"]}, ("target.1", "a", "b")),
        ({"target": [{"layers": 5}, "a"]}, ("target.0.layers", 6, 5)),
        ({"target": None}, ("target.0.layers", 6, "not set")),
    ],
)
def test_json_is_compared_by_name_and_gin_inside_it_as_settings(change, difference):
    about = {"gin": "A.x = 1\n", "threads": 2, "sizes": (1, 2)}
    about |= {"model": {"layers": 2}, "target": [{"layers": 6}, "a"]}
    assert first_difference(json.dumps(about), json.dumps(about | change)) == difference


def held(folder):
    return records.locked(folder / "out", folder / ".lock", "--output_file", "out.*")


def test_an_output_is_held_by_one_at_a_time(tmp_path):
    with held(tmp_path):
        message = "out is being written by another process; wait for it, or give another --output"
        with pytest.raises(RecordsError, match=message), held(tmp_path):
            pass
    with held(tmp_path):
        pass


def test_a_process_that_is_killed_lets_go_and_leaves_no_parts(tmp_path):
    code = """
import os, sys
from pathlib import Path
from specdec.common import records
folder = Path(sys.argv[1])
with records.locked(folder / "out", folder / ".lock", "", "out.*"):
    (folder / "out.1234.part").touch()
    (folder / "another.1234.part").touch()
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -9
    with held(tmp_path):
        assert names(tmp_path) == [".lock", "another.1234.part"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    lock = tmp_path / "file" / "folder" / ".lock"
    with pytest.raises(RecordsError, match="--output_dir .* cannot be used: "):
        with records.locked(tmp_path / "file" / "folder", lock, "--output_dir", "*"):
            pass


def test_figures_that_json_does_not_have_are_null():
    row = collections.OrderedDict(nan=math.nan, more=(math.inf, [-math.inf, 1.5]), text="ä", n=1)
    assert records.as_json({"row": row}) == (
        '{"row": {"nan": null, "more": [null, [null, 1.5]], "text": "ä", "n": 1}}'
    )
    assert records.as_json({"a": 1}, indent=2) == '{\n  "a": 1\n}'
    view = types.MappingProxyType({"a": math.nan})
    assert records.as_json([view]) == '[{"a": null}]'


def test_a_folder_that_is_still_written_to_is_removed_and_keeps_its_error(tmp_path, monkeypatch):
    """Orbax's threads may go on writing for a moment after one of them has failed."""
    rmdir, refused = os.rmdir, []

    def refuse_once(path, **given):
        if not refused:
            refused.append(path)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        rmdir(path, **given)

    monkeypatch.setattr(os, "rmdir", refuse_once)
    with pytest.raises(OSError) as caught, records.complete_folder(tmp_path / "model") as folder:
        folder.mkdir()
        raise OSError(errno.EFBIG, "file too large")
    assert caught.value.errno == errno.EFBIG and refused
    assert names(tmp_path) == []


def test_a_process_holds_what_it_writes_until_its_command_ends(tmp_path):
    """Lines by themselves, and again and again; another process is as good as another lock."""
    path, other = tmp_path / "out.jsonl", filelock.FileLock(tmp_path / ".out.jsonl.lock")
    with records.holding():
        for write in (lambda: Lines(path).append({"a": 1}), lambda: Lines(path).replace([])):
            write()
            with pytest.raises(filelock.Timeout):
                other.acquire(blocking=False)
        records.hold(path)
        records.hold(tmp_path / "never.jsonl")
    with other:
        message = "out.jsonl is being written by another process; wait for it, or give another"
        with pytest.raises(RecordsError, match=message):
            Lines(path).append({"a": 1})
    assert names(tmp_path) == [".out.jsonl.lock", "out.jsonl"] and not path.read_text()


def test_a_folder_that_another_process_made_meanwhile_stays(tmp_path):
    with pytest.raises(RecordsError, match="model was made by another process meanwhile; use it"):
        with records.complete_folder(tmp_path / "model") as folder:
            for each in (folder, tmp_path / "model"):
                each.mkdir()
                (each / each.parent.name).touch()
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == [tmp_path.name]


# Modules that write files without `records`: into folders that are made whole, or locked.
WRITERS = {
    "__main__.py",  # the null device
    "checkpoints/huggingface.py",
    "checkpoints/huggingface_files.py",
    "checkpoints/safetensors.py",
    "checkpoints/t5x_format.py",
    "checkpoints/text_model.py",
    "checkpoints/directory.py",
    "checkpoints/tables/files.py",
    "common/child.py",  # the output of a command
    "common/records.py",
    "training/distillation/distillation.py",  # a host's own copy
    "training/distillation/made_tables.py",  # the log of a table's training
}


def test_files_are_written_by_records():
    """So that they are complete, and of one process; see `records.hold`."""
    package = Path(records.__file__).parents[1]
    wrote = re.compile(
        r"\.write_(text|bytes)\(|open\([^)]*[\"'][wax]b?[\"']|np\.save|O_WRONLY \| os|shutil\.copy|"
        r"\.savefig\((?!written)"
    )
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if wrote.search(path.read_text(encoding="utf-8"))
    }
    assert found == WRITERS
