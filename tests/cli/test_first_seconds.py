"""The first seconds of a command: pytest tests/cli/test_first_seconds.py

Each process is a new one, in which a stub takes the place of `specdec.cli`, which loads JAX.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec import __main__ as command

ROOT = Path(__file__).resolve().parents[2]

# Has `import specdec.cli` run the code that follows, and then a command.
MAIN = """
import importlib.machinery, os, signal, sys, threading

class Stub:
    def find_spec(self, name, path=None, target=None):
        if name == "specdec.cli":
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.main = lambda: 0
        %s

sys.meta_path.insert(0, Stub())
from specdec.__main__ import main
sys.exit(main())
"""

# A shell's "&" has the signal ignored.
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def run(code: str, close: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEARD + MAIN % code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=None if close is None else lambda: os.close(close),
    )


@pytest.mark.parametrize(
    "signal, code, what", [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_a_signal_ends_the_imports_with_one_line(signal, code, what):
    """Even where an exception would be caught."""
    done = run(f"""
        try:
            os.kill(os.getpid(), signal.{signal})
            sum(range(10**7))
        except BaseException:
            pass""")
    said = f"specdec: {what}; give the command again\n"
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_signal_that_is_ignored_stays_so():
    """`nohup`, and scripts that start a command in the background, have the signal ignored."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + MAIN
    kill = "os.kill(os.getpid(), signal.SIGINT)"
    command = [sys.executable, "-c", code % kill]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_variable_that_jax_refuses(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "maybe")
    done = run("raise ValueError('invalid truth value \\'maybe\\'\\nfor X')")
    assert done.returncode == 2 and done.stderr.startswith(
        "specdec: JAX: invalid truth value 'maybe' for X; correct or unset one of "
    )
    assert "JAX_ENABLE_X64" in done.stderr and done.stderr.count("\n") == 1


def test_what_a_child_begins_with_takes_no_time():
    """Until it watches its parent, it lives on if that is killed."""
    code = "import sys, specdec.common.child; print({'jax', 'numpy'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("stream", [0, 2])
def test_a_closed_stream_is_the_null_device(stream):
    """No file takes its place, and nothing that is for a closed stderr goes to stdout."""
    done = run(
        "print('a note', file=sys.stderr); print(sys.stdin.read() == '', "
        "os.open('/dev/zero', os.O_RDONLY) > 2)",
        close=stream,
    )
    assert (done.returncode, done.stdout) == (0, "True True\n")
    assert done.stderr == ("a note\n" if stream == 0 else "")


def test_a_closed_stdout_is_not_replaced():
    """`specdec.cli` refuses it."""
    done = run("print(sys.stdout, os.open('/dev/zero', os.O_RDONLY) > 2, file=sys.stderr)", close=1)
    assert done.stderr == "None True\n"


def test_the_current_folder_is_left_unless_it_is_a_checkout(monkeypatch, tmp_path):
    checkout = str(Path(command.__file__).resolve().parents[1])
    for here, kept in ((str(tmp_path), ["/other"]), (checkout, [checkout, "", "/other"])):
        monkeypatch.chdir(here)
        monkeypatch.setattr(sys, "path", [here, "", "/other"])
        monkeypatch.setenv("PYTHONSAFEPATH", "")
        command._leave_current_folder()
        assert sys.path == kept and os.environ["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("closed", [(), (0,), (0, 1, 2), (3,)])
def test_streams_that_are_closed_are_opened_and_no_others(monkeypatch, closed):
    opened, given = [], {0: object(), 2: object()}

    def state(stream):
        if stream in closed:
            raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", state)
        patched.setattr(os, "open", lambda *given: opened.append(given))
        patched.setattr(sys, "stdin", None if 0 in closed else given[0])
        patched.setattr(sys, "stderr", None if 2 in closed else given[2])
        command._fill_closed_streams()
        stdin, stderr = sys.stdin, sys.stderr
    assert opened == [(os.devnull, os.O_RDWR)] * len({0, 1, 2} & {*closed})
    for stream, found, mode in ((0, stdin, "r"), (2, stderr, "w")):
        if stream not in closed:
            assert found is given[stream]
            continue
        with found:
            assert (found.name, found.mode, found.encoding) == (os.devnull, mode, "utf-8")
