"""The one place that imports seqio, and with it TensorFlow: seconds, and gigabytes of memory."""

from __future__ import annotations

import contextlib
import functools
import os
from types import ModuleType


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
    """TensorFlow's C++ code logs below Python, whatever its log level: no line of it comes out."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
