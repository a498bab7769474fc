"""The one place that imports seqio, and with it TensorFlow: seconds, and gigabytes of memory."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

PATIENCE = 20  # seconds to read a vocabulary from a network


class TaskError(ValueError):
    """A task, its files or its vocabulary cannot be used; the message is one line."""


@functools.cache
def load_seqio() -> ModuleType:
    """The seqio module, imported at the first call."""
    with quiet_stderr():
        import seqio
        import tensorflow as tf

        # TensorFlow only reads text here; it would reserve the accelerator's memory.
        with contextlib.suppress(RuntimeError):  # somebody's TensorFlow already runs: let it
            tf.config.set_visible_devices([], "GPU")
    return seqio


@contextlib.contextmanager
def quiet_stderr():
    """Silences TensorFlow's C++ code, which logs below Python, whatever its log level."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def read(path: str) -> bytes:
    """Reads a vocabulary's file, on this machine or on a network.

    Raises:
      TaskError: it is out of reach.
    """
    if "://" not in path:
        return Path(path).read_bytes()
    load_seqio()
    import tensorflow as tf

    return read_in_time(path, lambda: tf.io.gfile.GFile(path, "rb").read())


def read_in_time(path: str, read: Callable[[], Any]) -> Any:
    """Returns what `read` gives of a vocabulary on a network, unless it takes too long.

    TensorFlow would try for minutes, in the middle of a run. Raises TaskError.
    """
    found: list[Any] = []
    failures = [f"no answer in {PATIENCE} s"]

    def run():
        try:
            found.append(read())
        except Exception as error:  # of TensorFlow's file systems, or of SentencePiece
            failures[0] = str(error).partition("\n")[0]

    thread = threading.Thread(target=run, daemon=True)
    with quiet_stderr():
        thread.start()
        thread.join(PATIENCE)
    if not found:
        raise TaskError(
            f"vocabulary {path} cannot be read ({failures[0]}); name a copy on this machine, as "
            "with --gin.VOCABULARY_PATH=\"'FILE'\""
        )
    return found[0]
