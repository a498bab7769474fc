"""A command in a process of its own, watched from inside: pytest tests/test_child.py

The process itself is one of `specdec replicate`, see tests/replicate/test_replicate.py.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading
from types import SimpleNamespace

import filelock
import pytest

from specdec.common import child


class Ended(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def parent(monkeypatch):
    """The ends of a pipe that a parent holds open, as its sentinel; `os._exit` raises Ended."""
    reading, writing = multiprocessing.Pipe(duplex=False)

    def end(code):
        raise Ended(code)

    process = SimpleNamespace(sentinel=reading)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: process)
    monkeypatch.setattr(os, "_exit", end)
    yield writing
    reading.close()


def test_a_command_writes_to_its_log_alone_in_its_folder(tmp_path, monkeypatch):
    log, calls = tmp_path / "a.log", []
    log.write_text("of an earlier command")

    def run(*given, **named):
        with pytest.raises(filelock.Timeout):
            filelock.FileLock(tmp_path / ".process.lock", is_singleton=False).acquire(timeout=0)
        watching = [x for x in threading.enumerate() if x.name == "watching"]
        calls.append((given, named, sys.argv, [x.daemon for x in watching]))

    def thread(target, daemon):
        assert target is child._end_with_parent
        return kind(target=over.wait, daemon=daemon, name="watching")

    over, kind = threading.Event(), threading.Thread
    monkeypatch.setattr(threading, "Thread", thread)
    monkeypatch.setattr(runpy, "run_module", run)
    monkeypatch.setattr(sys, "argv", [])
    streams = []
    monkeypatch.setattr(os, "dup2", lambda file, stream: streams.append((os.fstat(file), stream)))
    child.command(("list", "runs"), str(log))
    over.set()
    named = {"run_name": "__main__", "alter_sys": True}
    assert calls == [(("specdec",), named, ["specdec", "list", "runs"], [True])]
    assert [stream for _, stream in streams] == [1, 2]
    assert all(os.path.samestat(file, log.stat()) for file, _ in streams)
    assert log.read_text() == ""


def test_a_process_ends_when_its_parent_has(parent):
    ended = []

    def watch():
        try:
            child._end_with_parent()
        except Ended as code:
            ended.append(code.args)

    watching = threading.Thread(target=watch)
    watching.start()
    watching.join(0.05)
    assert watching.is_alive() and not ended
    parent.close()
    watching.join(10)
    assert ended == [(1,)]


def test_a_process_that_nobody_started_goes_on(parent, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    assert child._end_with_parent() is None
