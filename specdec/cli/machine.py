"""Errors of the machine, each reported in one line.

The causes are a full disk, a closed pipe, a missing folder, a missing device, or a lost host.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import jax
from jax.sharding import Mesh

from specdec import tasks
from specdec.common import environment, progress
from specdec.common.terminal import visible
from specdec.common.values import UsageError

REMEDIES = {
    errno.ENOSPC: "free some space and give the command again",
    errno.EDQUOT: "free some of your quota and give the command again",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) and give the command again",
    errno.EROFS: "give a folder that can be written",
    errno.EACCES: "give a folder that is yours, or change its permissions",
    errno.EPERM: "give a folder that is yours, or change its permissions",
    errno.ENOENT: "it is missing or was removed; put it back, or give another",
    errno.ENOTDIR: "a part of that path is a file; give another",
    errno.EISDIR: "give a file",
    errno.EIO: "check the device, and give the command again",
}


OF_STREAMS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
PATIENCE = 7 * 24 * 3600  # seconds that a host waits at its end; others may have more work left
SILENCE = 60  # seconds, after which a host counts as lost
JOINING = 120  # seconds within which all hosts must have started
SEE = "see the last lines of the others, and give the command again on all hosts"
ENDED = f"another host has ended; {SEE}"
LEAVING = 10  # seconds for which a failed host waits for the others
LOST = re.compile("Gloo|heartbeat|coordination service|DEADLINE_EXCEEDED|UNAVAILABLE", re.I)


class Terminated(KeyboardInterrupt):
    """The signal SIGTERM, handled like Ctrl-C but with its own exit code."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM raise `Terminated` and Ctrl-C KeyboardInterrupt, so that files are closed."""

    def end(*_) -> None:
        raise Terminated

    with contextlib.ExitStack() as after:
        if threading.current_thread() is threading.main_thread():  # which alone gets signals
            handlers = {signal.SIGTERM: end, signal.SIGINT: signal.default_int_handler}
            for number, handler in handlers.items():
                if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                    after.callback(signal.signal, number, signal.signal(number, handler))
        yield


@functools.cache  # once is enough
def quiet() -> None:
    """Silences other reports of errors that specdec reports in one line.

    Orbax logs each error, asyncio those that Orbax did not await, Python the coroutines that never
    ran, and TensorStore the calls to a closed loop. Matplotlib warns of a missing home folder.
    """
    for name in ("absl", "asyncio", "matplotlib"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    others = sys.unraisablehook

    def hook(args: sys.UnraisableHookArgs) -> None:
        if str(args.exc_value) != "Event loop is closed":
            others(args)

    sys.unraisablehook = hook


@contextlib.contextmanager
def notes_of_one_line() -> Iterator[None]:
    """Shows warnings about sound files as one line on stderr; Python shows other warnings."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, tasks.SoundWarning):
                print(f"specdec: {visible(message)}", file=sys.stderr)
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def write_all_characters() -> None:
    r"""Makes stdout escape characters that its encoding, such as cp1252, lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def refuse_closed_output() -> None:
    """Raises UsageError if stdout is closed, because the next opened file would replace it."""
    if sys.stdout is None:
        raise UsageError("standard output is closed; redirect it, as in >/dev/null")


def of(error: Exception) -> str | None:
    """Returns a one-line message about an error of the machine; None for any other error."""
    if isinstance(error, OSError):
        return _of_file(error)
    if jax.distributed.is_initialized() and LOST.search(str(error)):
        return ENDED
    return _of_device(error)


def _of_file(error: OSError) -> str:
    what = error.strerror or str(error).partition("\n")[0]
    remedy = REMEDIES.get(error.errno or 0, "put that right and give the command again")
    if error.filename is None and error.errno in OF_STREAMS:  # our files have names in their errors
        leave_stdout()
        return f"standard output: {what}; {remedy}"
    return f"{error.filename or 'the machine'}: {what}; {remedy}"


def _of_device(error: Exception) -> str | None:
    head = str(error).partition("\n")[0]
    if not head.startswith(("Unable to initialize backend", "Unknown backend")):
        return None
    platforms = jax.config.jax_platforms or "not set"  # pyright: ignore[reportAttributeAccessIssue]
    return f"JAX_PLATFORMS is {platforms}: {head}; unset it, or set it to cpu"


def cache_folder() -> str:
    """Returns the folder of compiled programs, '' if there is no home folder."""
    folder = environment.cache_folder()
    return folder and str(Path(folder) / "xla")


def refuse_unwritable_folder(flag: str, path: str | None) -> None:
    """Raises UsageError, before any long work, if a folder cannot be made or written."""
    if not path or "://" in path:
        return
    nearest = Path(path).absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UsageError(f"{flag} {path} cannot be written, {nearest} is in the way; give another")


def leave_stdout() -> None:
    """Discards unwritten output, so that Python does not try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def prepare(args: argparse.Namespace) -> None:
    """Joins other hosts and sets the folder of compiled programs, as the flags of a run say."""
    join_other_hosts(args)
    refuse_unwritable_folder("--compilation_cache_dir", args.compilation_cache_dir)
    jax.config.update("jax_compilation_cache_dir", args.compilation_cache_dir or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def prepare_training(args: argparse.Namespace, mesh: int | None) -> None:
    """Refuses --distributed without a mesh and an unwritable folder; then joins other hosts."""
    refuse_no_mesh(args, mesh)
    refuse_unwritable_folder("--output_dir", args.output_dir)
    join_other_hosts(args)


def join_other_hosts(args: argparse.Namespace) -> None:
    """Joins the processes of all hosts into one JAX program if --distributed is given.

    It does nothing if they have joined before.
    """
    hosts = vars(args).get("distributed")
    if hosts is None or jax.distributed.is_initialized():
        return
    address, count, index = None, None, None
    if hosts:
        try:
            address, *numbers = hosts.split(",")
            count, index = map(int, numbers)
        except ValueError as error:
            raise UsageError(
                f"--distributed={hosts} is not ADDRESS,COUNT,INDEX, as in 10.0.0.1:8476,2,0; "
                "give all three"
            ) from error
    _end_in_one_line_when_aborted()
    late = threading.Timer(JOINING, _end, [f"not all hosts have joined within {JOINING} s; {SEE}"])
    late.daemon = True
    late.start()
    # JAX's own service would take SIGTERM from `terminable` and `train`, and knows no Ctrl-C.
    jax.config.update("jax_enable_preemption_service", False)
    try:  # a host that is done waits for the others: if one left, JAX would end them all
        with progress.stage("starting", "waiting for the other hosts"):
            jax.distributed.initialize(
                coordinator_address=address,
                num_processes=count,
                process_id=index,
                initialization_timeout=JOINING + SILENCE,  # `late` comes before
                heartbeat_timeout_seconds=SILENCE,
                shutdown_timeout_seconds=PATIENCE,
            )
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"--distributed: JAX finds no other hosts ({error}); leave it out on one host"
        ) from error
    finally:
        late.cancel()


_handlers: list[object] = []  # the handler in use


def _end_in_one_line_when_aborted() -> None:
    """Makes SIGABRT end this process with one line.

    JAX aborts a process in C++ if it notices that another host is lost. A signal handler in Python
    would then never run.
    """
    if os.name != "posix":
        return
    import ctypes

    _handlers[:] = [ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: _end(ENDED))]
    handle = ctypes.CDLL(None).signal
    handle.restype = ctypes.c_void_p
    handle(int(signal.SIGABRT), _handlers[0])


def _end(line: str) -> None:
    """Prints a line and ends this process immediately with exit code 2."""
    progress.last_line(line)
    os._exit(2)


def refuse_no_mesh(args: argparse.Namespace, mesh: Mesh | int | None) -> None:
    """Raises UsageError if --distributed is given and `mesh` is None."""
    if args.distributed is not None and mesh is None:
        raise UsageError(
            "--distributed makes the devices of all hosts one mesh, and there is none; give "
            "--gin.NUM_PARTITIONS=1 to divide the rows of a batch, or more for the models too"
        )


def leave(code: int) -> None:
    """Ends this process with an exit code after `LEAVING` seconds if it is one of several hosts.

    Otherwise a failed process and the other hosts would wait for each other without end.
    """
    if jax.distributed.is_initialized():
        timer = threading.Timer(LEAVING, os._exit, [code])
        timer.daemon = True
        timer.start()
