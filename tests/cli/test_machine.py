"""What the machine refuses is one line too: pytest tests/cli/test_machine.py

Closed and full standard outputs, signals and absent devices are those of real processes: forks of
one that has imported everything and started nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import queue
import re
import subprocess
import sys
from pathlib import Path

import filelock
import jax
import pytest
import yard
from yard import the_line

from specdec import checkpoints, cli
from specdec.checkpoints import contents
from specdec.cli import machine, output, sinks
from specdec.common import resources, schemas
from specdec.common.records import RecordsError
from specdec.common.values import UsageError
from specdec.engine import Engine
from specdec.measure.parts import Workload

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = ROOT / "docs" / "results" / "amd_epyc_avx512_2_cores" / "ende_t0.jsonl.summary.json"

# Reads lines of JSON, [what the machine is like, command line], and prints for each
# [exit code, stdout, stderr]; a child does what Python does when a process begins and ends so.
FORKS = """
import json, os, resource, signal, sys, threading, time
import jax
from specdec import cli
from specdec.cli import machine

def closed():
    os.close(1)
    sys.stdout = None

def full():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))

def terminated():
    threading.Thread(target=terminate, daemon=True).start()

def terminate():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    while True:  # one that comes just before the file is opened is seen after that
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)

def lost():
    jax.distributed.initialize = lambda **_: os.abort()

def late():
    machine.JOINING = 0.2
    jax.distributed.initialize = lambda **_: time.sleep(60)

for line in sys.stdin:
    state, argv, out, err = json.loads(line)
    if not (child := os.fork()):
        for fd, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
        if state in globals():
            globals()[state]()
        sys.exit(cli.main(argv))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, open(out).read(), open(err).read()]), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run without a mistake."""
    made = yard.pair(tmp_path_factory.mktemp("pair"), "machine")
    train = yard.TRAIN.replace("the folder", str(made)).replace("'yard'", "'machine_train'")
    (made / "train.gin").write_text(train)
    (made / "inputs").write_text("".join(f"text {number}\n" for number in range(40)))
    return made


@pytest.fixture(scope="module")
def forks():
    """A process that runs commands on machines that are not as they should be."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "tpu"},
    )
    yield process
    process.stdin.close()
    process.wait()


@pytest.fixture
def on(forks, tmp_path):
    """Runs a command there; returns the exit code, stdout and stderr."""

    def run(state, *argv):
        files = [str(tmp_path / name) for name in ("stdout", "stderr")]
        forks.stdin.write(json.dumps([state, argv, *files]) + "\n")
        forks.stdin.flush()
        return json.loads(forks.stdout.readline())

    return run


@pytest.mark.ci
def test_a_machine_as_it_should_be(on):
    code, out, err = on("well", "report", str(SUMMARY))
    assert (code, err) == (0, "") and "|" in out


def test_stdout_is_closed(on):
    line = the_line(*on("closed", "report", str(SUMMARY)))
    assert line == "specdec: standard output is closed; redirect it, as in >/dev/null"


def test_stdout_is_full(on):
    line = the_line(*on("full", "report", str(SUMMARY)))
    assert line.startswith("specdec: standard output: No space left on device; free some space")


def test_a_file_can_grow_no_further(on, tmp_path):
    path = tmp_path / "report.md"
    line = the_line(*on("limited", "report", str(SUMMARY), f"--output_file={path}"))
    assert line.startswith(f"specdec: {path}: File too large; raise the limit")
    assert not list(tmp_path.glob("report*"))


def test_sigterm(on, tmp_path):
    os.mkfifo(tmp_path / "never.summary.json")
    code, out, err = on("terminated", "report", str(tmp_path / "never.summary.json"))
    assert (code, out, err) == (
        143,
        "",
        "specdec: terminated; if repeated, the command starts over\n",
    )


@pytest.mark.parametrize(
    "state, what", [("lost", "another host has ended"), ("late", "not all hosts have joined")]
)
def test_hosts_that_end_or_never_begin(on, folder, state, what):
    """JAX aborts the process in C++, or waits for them."""
    run = f"--gin_file={folder / 'run.gin'}"
    line = the_line(*on(state, "decode", run, "--distributed=localhost:1,2,0"))
    assert line.startswith(f"specdec: {what}")
    assert line.endswith(
        "; see the last lines of the others, and give the command again on all hosts"
    )


def test_jax_platforms_names_a_device_that_is_not_there(on, folder, tmp_path):
    argv = ("convert", str(folder / "target"), str(tmp_path / "out"), "--format=t5x")
    line = the_line(*on("well", *argv))
    assert re.match("specdec: JAX_PLATFORMS is tpu: .*; unset it, or set it to cpu", line)
    assert not (tmp_path / "out").exists()


class LongWork(Exception):
    """Nothing is wrong, and the parameters are about to be read."""


@pytest.fixture
def command(folder, cache, capsys, monkeypatch):
    """Runs a command on the tiny pair up to its long work."""

    def long(*_, **__):
        raise LongWork

    monkeypatch.setattr(checkpoints, "load", long)
    # It traces, and finds nothing here.
    monkeypatch.setattr(Engine, "check", lambda *_, **__: None)
    monkeypatch.setattr(Workload, "check", lambda *_: None)

    def run(name, *flags, kept=f"--compilation_cache_dir={cache}"):
        capsys.readouterr()
        return cli.main([name, f"--gin_file={folder / 'run.gin'}", *[kept] * bool(kept), *flags])

    return run


def begun(command, *argv):
    """Runs a command until its outputs are there and empty."""
    with pytest.raises(LongWork):
        command(*argv)


def test_nobody_has_a_home(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where Keras makes a folder called ~
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])
    assert machine.cache_folder() == ""
    begun(lambda: command("decode", kept=None))


@pytest.mark.parametrize("gamma", [8, 10**9])
def test_drafts_that_no_output_has_room_for_are_cut(command, capsys, gamma):
    begun(command, "decode", f"--gin.GAMMA={gamma}")
    line = f"specdec: drafts of {gamma} tokens are cut to 7; outputs hold 8\n"
    assert capsys.readouterr().err == line


def test_drafts_that_an_output_has_room_for_are_not_cut(command, capsys):
    begun(command, "decode", "--gin.GAMMA=7")
    assert capsys.readouterr().err == ""


def test_a_schedule_without_shorter_drafts(command, capsys, monkeypatch):
    from specdec.schedules import Fixed

    monkeypatch.delattr(Fixed, "up_to")
    line = the_line(command("decode", "--gin.GAMMA=8"), *capsys.readouterr())
    assert "Fixed(gamma=8) drafts up to 8 tokens but outputs hold 8; give shorter drafts" in line


TEXT = {"index": 0, "sample": 0, "input": "one", "target": "eins"}
LINE = TEXT | {"prediction": "x", "tokens": [1], "calls": 1, "drafted": [1], "accepted": [0]}
DAMAGED = {
    "noise in the middle": ([b"\x00\xff\xfe"], "line 2, is not JSON"),
    "half a line in the middle": ([b'{"index": 1,'], "line 2, is not JSON"),
    "another kind of JSON": (
        [b"[1]"],
        "line 2, is no such JSON object: expected object, got array; delete",
    ),
    "a line twice": ([json.dumps(LINE).encode()], "line 2: index is 0, and the run's is 1; "),
    "too many lines": ([b"{}"] * 7, "line 2: index is None, and the run's is 1; "),
}


@pytest.mark.parametrize("lines, says", DAMAGED.values(), ids=DAMAGED)
def test_predictions_that_are_damaged(command, capsys, tmp_path, lines, says):
    eval = ("eval", "--metric=bleu", f"--output_dir={tmp_path / 'out'}")
    if not (tmp_path / "out").exists():
        begun(command, *eval)
    file = tmp_path / "out" / "predictions.jsonl"
    whole = b"\n".join([json.dumps(LINE).encode(), *lines, b""])
    file.write_bytes(whole)
    line = the_line(command(*eval), *capsys.readouterr())
    assert f"{file}, {says}" in line
    assert file.read_bytes() == whole


def test_predictions_without_a_prediction(command, capsys, tmp_path):
    eval = ("eval", "--metric=bleu", "--limit=1", f"--output_dir={tmp_path / 'out'}")
    begun(command, *eval)
    file = tmp_path / "out" / "predictions.jsonl"
    del (lacking := dict(LINE))["prediction"]
    file.write_text(json.dumps(lacking) + "\n")
    line = the_line(command(*eval), *capsys.readouterr())
    assert f"{file}, line 1, has no 'prediction'; delete" in line


@pytest.mark.parametrize("name", ["bench", "acceptance"])
def test_measurements_that_are_damaged(command, capsys, tmp_path, name):
    file = tmp_path / "out.jsonl"
    begun(command, name, f"--output_file={file}")
    settings = Path(f"{file}.gin").read_text().splitlines()
    assert f"# format of {name} = {schemas.version(name)}" in settings
    file.write_text('{"mode": "alone", "text": 0, "weather": "fine"}\n')
    line = the_line(command(name, f"--output_file={file}"), *capsys.readouterr())
    assert f"{file}, line 1, is not of `specdec {name}`; delete" in line


def runs(*flags):
    return lambda folder: [f"--gin_file={folder / 'run.gin'}", *flags]


TARGET = resources.folder("demo") / "target"

# What each command is given, its output aside, and the file whose lock it takes.
WRITERS = {
    "decode": (runs(), "out.jsonl"),
    "score": (runs(), "out.jsonl"),
    "verify": (runs(), "out.jsonl"),
    "bench": (runs(), "out.jsonl"),
    "acceptance": (runs(), "out.jsonl"),
    "forecast": (runs("--passes=none.jsonl"), "out.jsonl"),
    "compile": (runs("--topology=v4:1x1x1"), "out.jsonl"),
    "report": (lambda _: [str(SUMMARY)], "out.jsonl"),
    "eval": (runs("--metric=bleu"), "predictions.jsonl"),
    "tune": (runs(), "tune.json"),
    "distill": (
        lambda folder: [f"--target={TARGET}", f"--inputs={folder / 'inputs'}", "--task_prefix="],
        "distill.json",
    ),
    "replicate": (lambda _: ["demo", "--rows=ende_t0"], ""),
    "train": (lambda folder: [f"--gin_file={folder / 'train.gin'}"], ""),  # of the fixture
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_output_is_written_by_one_process(folder, command, capsys, tmp_path, name):
    """Before any long work, with the other process's output as it is."""
    given, held = WRITERS[name]
    flag = "--output_file" if held == "out.jsonl" else "--output_dir"
    output = tmp_path / "out.jsonl" if held == "out.jsonl" else tmp_path
    lock = filelock.FileLock(tmp_path / (f".{held}.lock" if held else ".lock"))
    if name == "train":
        (tmp_path / "settings.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    with lock:
        line = the_line(cli.main([name, *given(folder), f"{flag}={output}"]), *capsys.readouterr())
    assert f" is being written by another process; wait for it, or give another {flag}" in (
        line.replace("output directory", "--output_dir")
    )
    made = {Path(lock.lock_file), *[tmp_path / "run.gin", tmp_path / held] * (name == "eval")}
    assert sorted(set(tmp_path.iterdir()) - made) == before


def test_every_command_with_an_output_is_known(capsys):
    """By its help; a checkpoint or a table is made whole, in a folder that must be new."""
    found = set()
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        if re.search("^ *--output_(file|dir)", capsys.readouterr().out, re.M):
            found.add(name)
    assert found == set(WRITERS)


def test_a_file_for_subtitles_or_a_page_is_written_by_one_process(tmp_path, capsys):
    page = tmp_path / "page.html"
    with filelock.FileLock(tmp_path / ".page.html.lock"):
        line = the_line(cli.main(["report", str(SUMMARY), f"--html={page}"]), *capsys.readouterr())
    assert line.endswith(
        "page.html is being written by another process; wait for it, or give another --html"
    )
    assert not page.exists()
    with filelock.FileLock(tmp_path / ".a.srt.lock"), pytest.raises(RecordsError):
        sinks.Subtitles(tmp_path / "a.srt").__enter__()


def test_a_recording_with_a_text_twice_is_refused(command, capsys, tmp_path):
    """When it is read, and when it is gone on with."""
    file = tmp_path / "out.jsonl"
    begun(command, "acceptance", f"--output_file={file}")
    text = {"tokens": 1, "output": [1], "inputs": [2], "accepted": {"model": [1.0] * 4}}
    lines = [json.dumps({"index": index, **text}) for index in (3, 5, 3)]
    file.write_text("".join(f"{line}\n" for line in lines))
    said = f"{file}, line 3, is of text 3, as line 1 is; delete that line and those after it"
    assert said in the_line(command("acceptance", f"--output_file={file}"), *capsys.readouterr())
    assert said in the_line(command("forecast", f"--passes={file}"), *capsys.readouterr())


def test_a_folder_that_disappears(folder, cache, capsys, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()

    def pairs():
        yield "one\teins\n"
        for file in gone.iterdir():
            file.unlink()
        gone.rmdir()
        yield "two\tzwei\n"

    monkeypatch.setattr("sys.stdin", pairs())
    argv = ["score", f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}"]
    code = cli.main([*argv, "--pairs=-", f"--output_file={gone / 'out.jsonl'}"])
    line = the_line(code, *capsys.readouterr())
    assert f"{gone / 'out.jsonl'}: No such file or directory; it is missing or was removed" in line


def test_the_disk_is_full(command, capsys, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    line = the_line(command("bench", f"--output_file={tmp_path / 'b.jsonl'}"), *capsys.readouterr())
    assert f"{tmp_path / 'b.jsonl.gin'}: No space left on device; free some space" in line
    assert list(tmp_path.iterdir()) == []


def test_stdin_is_no_text(command, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xf6\n"), "ascii", "surrogateescape")
    )
    line = the_line(command("decode", "--text=-"), *capsys.readouterr())
    assert "standard input, line 1" in line and "is not UTF-8; convert it" in line


@pytest.mark.parametrize(
    "command, said",
    [
        (["train", "--output_dir=my run"], "to go on: specdec train '--output_dir=my run'"),
        (["bench", "--output_file=x"], "to go on: specdec bench --output_file=x"),
        (["verify"], "to go on: specdec verify"),
        (["bench"], "if repeated, the command starts over; with --output_file it resumes"),
        (["decode", "--output_file=x"], "if repeated, the command starts over"),
    ],
)
def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch, command, said):
    def interrupted(*_):
        raise KeyboardInterrupt

    for module in ("decode", "bench", "train", "verify"):
        monkeypatch.setattr(getattr(cli, module), "command", interrupted)
    assert cli.main(command) == 130
    assert capsys.readouterr().err == f"specdec: interrupted; {said}\n"


def test_a_lost_host_is_one_line(monkeypatch):
    lost = ValueError("UNKNOWN: Gloo AllGather failed: [pair.cc:547] Connection closed by peer")
    assert machine.of(lost) is None  # of one process, which has no other hosts
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert machine.of(lost) == (
        "another host has ended; see the last lines of the others, and give the command again on "
        "all hosts"
    )
    assert machine.of(ValueError("a bug")) is None


def test_a_host_that_has_failed_does_not_wait_for_the_others(monkeypatch):
    codes = queue.Queue()
    monkeypatch.setattr(machine, "LEAVING", 0.01)
    monkeypatch.setattr(os, "_exit", codes.put)
    machine.leave(1)  # one process just ends
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    machine.leave(2)
    assert codes.get(timeout=10) == 2 and codes.empty()


def test_the_end_of_an_aborted_process_is_a_line_and_2(monkeypatch):
    ended = []
    monkeypatch.setattr(machine.progress, "last_line", ended.append)
    monkeypatch.setattr(os, "_exit", ended.append)
    machine._end("a host is lost")
    assert ended == ["a host is lost", 2]


@pytest.mark.parametrize("content, replaced", [('{"checks": []}', 1), ('{"a": 1}', 0), ("{", 0)])
def test_only_an_output_of_the_same_kind_is_replaced(tmp_path, content, replaced):
    (file := tmp_path / "certificate.json").write_text(content)
    args = argparse.Namespace(output_file=str(file), dry_run=True, tfds_data_dir=None)
    said = f"--output_file: {file} exists and is of another kind; delete it, or give another file"
    with contextlib.nullcontext() if replaced else pytest.raises(UsageError, match=re.escape(said)):
        output.check(args, holding="checks")


@pytest.mark.parametrize(
    "there, holding, more, held",
    [
        ("", None, {}, True),
        ("", "checks", {}, True),
        ("file", None, {}, False),
        ("file", "checks", {}, True),
        ("file and settings", None, {}, True),
        ("", None, {"dry_run": True}, False),
        ("", None, {"distributed": "auto"}, False),
        ("file", "checks", {"dry_run": True}, False),
    ],
)
def test_an_output_of_ours_is_held_by_the_command_that_writes_it(
    tmp_path, monkeypatch, there, holding, more, held
):
    """With several hosts the first one holds it later."""
    file, calls = tmp_path / "out.json", []
    if there:
        file.write_text('{"checks": []}')
    if there == "file and settings":
        (tmp_path / "out.json.gin").touch()
    monkeypatch.setattr(output.records, "hold", calls.append)
    output.check(argparse.Namespace(output_file=str(file), **more), holding=holding)
    assert calls == [file] * held


def test_each_finding_of_check_is_shown_at_once(monkeypatch):
    written, shown = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))

    def examine(path):
        yield contents.Finding("arrays", True, "3 of them")
        shown.append(written.getvalue().decode())
        yield contents.Finding("vocabulary", False, "is damaged")

    monkeypatch.setattr(contents, "examine", examine)
    assert cli.main(["check", "a"]) == 1
    sys.stdout.flush()
    assert shown == ["PASS arrays     3 of them\n"]
    lines = "PASS arrays     3 of them\nFAIL vocabulary is damaged\nDAMAGED: a\n"
    assert written.getvalue().decode() == lines
    monkeypatch.setattr(contents, "examine", lambda path: [contents.Finding("arrays", True, "x")])
    assert cli.main(["check", "a"]) == 0
    assert written.getvalue().decode() == f"{lines}PASS arrays     x\nSOUND\n"
