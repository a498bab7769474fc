"""Runs a `specdec` command in a child process, which ends when its parent ends.

This module imports nothing that takes long, so the child watches its parent from the first moment.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import threading
from multiprocessing import connection
from pathlib import Path

import filelock


def command(argv: tuple[str, ...], log: str) -> None:
    """Runs `specdec` in this process, with stdout and stderr in the file `log`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with filelock.FileLock(Path(log).parent / ".process.lock"):
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(file, stream)
        sys.argv = ["specdec", *argv]
        runpy.run_module("specdec", run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
