"""Bars on a terminal, and nothing elsewhere: pytest tests/test_progress.py"""

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from support import tiny_t5

from specdec import checkpoints, cli
from specdec.cli.variants import announce
from specdec.common import progress
from specdec.decoding.program import Program
from specdec.models.t5 import T5Target


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """A terminal on which bars show at once."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    screen = Screen()
    with progress.shown_on(screen):
        yield screen


def wait_for(screen, pattern):
    """Waits until a bar shows something."""
    deadline = time.monotonic() + 20
    while not re.search(pattern, screen.getvalue()):
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)


def test_a_bar_has_its_label_its_part_and_the_time_left(screen):
    with progress.bar("reading x", 4e9, "B") as bar:
        wait_for(screen, "reading x: ")
        bar.update(3e9)
        wait_for(screen, r"reading x:  75%.*3\.00G/4\.00G \[\d\d:\d\d<\d\d:\d\d, .*B/s\]")
    assert screen.getvalue().split("\r")[-1] == ""  # the line is cleared at the end


def test_a_bar_that_never_advanced_is_cleared(screen, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.05)
    with progress.bar("growing", 2, "step"):
        wait_for(screen, "growing:   0%")
    assert screen.getvalue().split("\r")[-1] == ""


def test_what_is_written_by_others_is_measured(screen, tmp_path):
    with progress.written("writing x", tmp_path / "new", 2000):
        (tmp_path / "new" / "a").mkdir(parents=True)
        (tmp_path / "new" / "a" / "b").write_bytes(bytes(500))
        wait_for(screen, r"writing x:  25%.*500/2\.00k")
        (tmp_path / "new" / "c").write_bytes(bytes(9000))
        wait_for(screen, r"writing x: 100%.*2\.00k/2\.00k")


def test_a_stage_is_said_at_once_and_its_line_is_cleared(screen):
    with progress.stage("reading", "reading x"):
        assert screen.getvalue() == "\r\x1b[Kspecdec: reading x ..."
        with progress.stage("decoding"):  # says nothing
            pass
        with progress.stage("compiling", "compiling y"):
            pass
    said = ["", "specdec: reading x ...", "specdec: compiling y ...", "specdec: reading x ...", ""]
    assert screen.getvalue().split("\r\x1b[K") == said


def test_stages_account_for_the_whole_time(monkeypatch):
    monkeypatch.setattr(progress.time, "perf_counter", iter([10, 12, 13, 16, 20, 21]).__next__)
    assert progress.spent() == {}
    with progress.shown_on(io.StringIO(), begun=9.0):
        with progress.stage("reading"):  # 10 to 20
            with progress.stage("compiling"):  # 12 to 13
                pass
            with progress.stage("compiling"):  # 16 to 20
                worker = threading.Thread(target=lambda: progress.stage("x").__enter__())
                worker.start()  # which nobody waits for
                worker.join()
        monkeypatch.setattr(progress.time, "perf_counter", lambda: 25.0)
        assert progress.spent() == {"other": 5.0, "reading": 6.0, "compiling": 5.0}
    assert progress.spent() == {}


def test_a_terminal_hears_of_the_command_before_jax_is_imported():
    program = (
        "import sys; sys.modules['jax'] = None; sys.stderr.isatty = lambda: True;"
        "from specdec.__main__ import main; main()"
    )
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr.startswith("\n\x1b[Kspecdec: starting ...\n\x1b[KTraceback")
    assert "import of jax halted" in done.stderr


def test_short_work_shows_none(screen, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 60.0)
    with progress.bar("reading x", 2, "step") as bar:
        bar.update()
        time.sleep(0.2)  # longer than a bar waits between two looks
        bar.update()
    assert screen.getvalue() == ""


@pytest.mark.parametrize("stream, term", [(io.StringIO(), "xterm"), (Screen(), "dumb")])
def test_nothing_is_shown_elsewhere(screen, monkeypatch, stream, term, tmp_path):
    monkeypatch.setenv("TERM", term)
    with progress.shown_on(stream), progress.bar("x", 2, "step") as bar:
        with progress.written("y", tmp_path, 2):
            bar.update()
            bar.set_description("z")
            time.sleep(0.1)
    assert stream.getvalue() == "" and screen.getvalue() == ""


@pytest.fixture
def saved(tmp_path):
    config = tiny_t5(11, 3, 5, head_dim=4)
    shapes = T5Target(config).parameter_shapes()
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    checkpoints.save(tmp_path / "small", params, config=config, format="t5x")
    (tmp_path / "config.json").write_text((tmp_path / "small" / "config.json").read_text())
    return tmp_path / "small", sum(leaf.nbytes for leaf in jax.tree.leaves(params))


@pytest.mark.ci
def test_a_command_shows_what_it_reads_and_writes(saved, tmp_path, monkeypatch, capsys):
    """Of `convert`: all bytes of the arrays, in the end."""
    path, size = saved
    told = []

    class Bar:
        def update(self, amount):
            told.append(amount)

    def bar(label, total, unit):
        assert (label, total, unit) == ("reading small", size, "B")
        return contextlib.nullcontext(Bar())

    monkeypatch.setattr(progress, "bar", bar)
    written = progress.written
    monkeypatch.setattr(progress, "written", lambda *args: told.append(args) or written(*args))
    command = ["convert", str(path), str(tmp_path / "other"), "--format=orbax"]
    assert cli.main(command) == 0
    *read, (label, _, total) = told
    assert sum(read) == size and len(read) > 3
    assert (label, total) == ("writing other", size)
    assert capsys.readouterr().err == ""


def test_commands_show_bars_on_their_terminal(saved, tmp_path, monkeypatch):
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    slow = checkpoints.arrays.fetch
    monkeypatch.setattr(checkpoints.arrays, "fetch", lambda *args: time.sleep(0.02) or slow(*args))
    assert cli.main(["convert", str(saved[0]), str(tmp_path / "other"), "--format=t5x"]) == 0
    assert "reading small: " in screen.getvalue()
    assert progress._stream is None


@pytest.mark.parametrize(
    "terminal, term, clear",
    [
        (True, "xterm", "\r\x1b[K"),
        (True, "dumb", ""),
        (True, None, "\r\x1b[K"),
        (False, "xterm", ""),
        (False, "dumb", ""),
    ],
)
def test_the_last_line_takes_the_place_of_a_bar(monkeypatch, terminal, term, clear):
    written = []
    monkeypatch.setattr(os, "isatty", lambda stream: terminal and stream == 2)
    monkeypatch.setattr(os, "write", lambda *given: written.append(given))
    monkeypatch.delenv("TERM", raising=False)
    if term:
        monkeypatch.setenv("TERM", term)
    progress.last_line("a host is lost")
    assert written == [(2, f"{clear}specdec: a host is lost\n".encode())]


def test_a_stage_shows_how_long_it_has_lasted_and_a_stage_inside_begins_anew(screen, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.stage("checking", "checking greedy"):
        now[0] += 7.5
        wait_for_text(screen, "\r\x1b[Kspecdec: checking greedy ... 7 s")
        with progress.stage("compiling", "compiling x"):
            now[0] += 12
            wait_for_text(screen, "\r\x1b[Kspecdec: compiling x ... 12 s")
        wait_for_text(screen, "\r\x1b[Kspecdec: checking greedy ... 19 s")
    written = screen.getvalue()
    time.sleep(0.1)
    assert screen.getvalue() == written  # nothing is written where no stage has a label


def wait_for_text(screen, text):
    for _ in range(2000):
        if text in screen.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(screen.getvalue())


@pytest.mark.parametrize(
    "expected, shown", [(None, ""), ((2, True), " of 2"), ((6, False), " of at most 6")]
)
def test_a_program_is_compiled_under_its_number_and_its_name(screen, expected, shown):
    if expected:
        progress.expect_programs(expected[0], exactly=expected[1])

    def read_inputs(params, x):
        return params + x

    first, second = Program(read_inputs), Program(lambda params, x: params - x)
    for program in (first, second):
        program.lower(1.0, np.ones(3))
        program.compile(1.0, np.ones(3))
    first.compile(1.0, np.ones(4))  # another shape is another program
    labels = re.findall(r"specdec: (.*?) \.\.\.", screen.getvalue())
    third = "" if expected == (2, True) else shown  # more than were expected: nothing is said
    assert labels == [
        f"compiling program 1{shown} (read inputs)",
        f"compiling program 1{shown} (read inputs)",
        f"compiling program 2{shown}",
        f"compiling program 2{shown}",
        f"compiling program 3{third} (read inputs)",
    ]


def test_a_stage_inside_a_bar_is_shown_next_to_it(screen):
    with progress.bar("timing", 2, "call"):
        wait_for(screen, "timing:   0%")
        with progress.stage("compiling", "compiling x"):
            wait_for(screen, "timing:   0%.*, compiling x]")
        before = len(screen.getvalue())
        wait_for(screen, r"timing:   0%[^\r]*$")
        assert "specdec: compiling x" not in screen.getvalue()[before:]


def test_a_check_is_announced_where_no_progress_is_shown(capsys):
    announce("draws")
    assert capsys.readouterr().err == "specdec: checking draws ...\n"
    with progress.shown_on(Screen()):
        announce("law")
    assert capsys.readouterr().err == ""
