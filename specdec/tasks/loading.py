"""Loads seqio and files of vocabularies. Only this module imports seqio, and so TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from specdec.common.file_names import refuse_pointer
from specdec.common.values import Checked
from specdec.tasks.plain import PlainVocabulary
from specdec.tasks.task_error import TaskError

if TYPE_CHECKING:
    from seqio import Vocabulary

T = TypeVar("T")

_SILENCE = threading.RLock()
PATIENCE = 20  # seconds to read a vocabulary from a network


@functools.cache
def load_seqio(user: str = "a task of seqio") -> ModuleType:
    """Returns the seqio module, imported at the first call; errors say that `user` needs it."""
    with quiet_stderr():
        try:
            import seqio
            import tensorflow as tf
        except ModuleNotFoundError as error:
            raise TaskError(f"{user} needs seqio; pip install seqio tensorflow-datasets") from error

        # TensorFlow only reads text here; it would reserve the accelerator's memory.
        with contextlib.suppress(RuntimeError):  # TensorFlow was initialised before
            tf.config.set_visible_devices([], "GPU")
    return seqio


@contextlib.contextmanager
def quiet_stderr():
    """Discards what C and C++ libraries print on stderr; one thread at a time."""
    with _SILENCE:
        if sys.stderr is None:  # it was closed when Python began
            yield
            return
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(null)


def read(path: str, kind: str) -> bytes:
    """Returns the bytes of a vocabulary's file of a `kind`, on this machine or on a network."""
    if "://" not in path:
        if not os.path.isfile(path):
            raise TaskError(f"vocabulary {path} is not a file; give a {kind}")
        refuse_pointer(Path(path), TaskError)
        return Path(path).read_bytes()
    load_seqio(f"vocabulary {path}, which is on a network,")
    import tensorflow as tf

    return read_in_time(path, lambda: tf.io.gfile.GFile(path, "rb").read())


def read_in_time(path: str, read: Callable[[], T]) -> T:
    """Returns the result of `read`; raises TaskError after `PATIENCE` seconds without one.

    TensorFlow would retry for minutes to read a vocabulary from a network.
    """
    results: list[T] = []
    failures = [f"no answer in {PATIENCE} s"]

    def run():
        try:
            results.append(read())
        except Exception as error:  # of TensorFlow's file systems, or of SentencePiece
            failures[0] = str(error).partition("\n")[0]

    thread = threading.Thread(target=run, daemon=True)
    with quiet_stderr():
        thread.start()
        thread.join(PATIENCE)
    if not results:
        raise TaskError(
            f"vocabulary {path} cannot be read ({failures[0]}); name a copy on this machine "
            "with --vocabulary=FILE, for T5's own tasks with --gin.VOCABULARY_PATH=\"'FILE'\""
        )
    return results[0]


class Definition(Checked):
    """The base class of vocabularies' descriptions, which are frozen dataclasses."""

    error: ClassVar = TaskError

    def plain(self) -> PlainVocabulary:
        """Returns the vocabulary for texts.

        Raises:
          TaskError: its file does not exist or holds something else, or a library is missing.
        """
        raise NotImplementedError

    def load(self) -> Vocabulary:
        """Returns the vocabulary for seqio's tasks, with the same ids, texts and errors."""
        return _seqio_class()(self.plain())


@functools.cache
def _seqio_class() -> Callable[[PlainVocabulary], Vocabulary]:
    """Returns a class of seqio's vocabularies that wraps a `PlainVocabulary`."""
    seqio = load_seqio()
    import tensorflow as tf

    class PlainView(seqio.Vocabulary):
        """A `PlainVocabulary` with the methods that seqio calls."""

        def __init__(self, plain: PlainVocabulary):
            super().__init__(extra_ids=plain.extra_ids)
            self.plain, self.file, self.digest = plain, plain.file, plain.digest

        eos_id = property(lambda self: self.plain.eos_id)
        unk_id = property(lambda self: self.plain.unk_id)
        vocab_size = _base_vocab_size = property(lambda self: self.plain.vocab_size)

        def _encode(self, s):
            return self.plain.encode(s)

        def _decode(self, ids):
            return self.plain.decode(ids)

        def pieces(self):
            return self.plain.pieces()

        def _encode_tf(self, s):
            ids = tf.numpy_function(self._encode_bytes, [tf.convert_to_tensor(s)], tf.int32)
            return tf.ensure_shape(ids, [None])

        def _encode_bytes(self, s):
            text = np.asarray(s, object).item().decode("utf-8", errors="replace")
            return np.array(self._encode(text), np.int32)

        def _decode_tf(self, ids):
            text = tf.numpy_function(lambda ids: self._decode(ids.tolist()), [ids], tf.string)
            return tf.ensure_shape(text, [])

        def __eq__(self, other):
            return isinstance(other, PlainView) and self.plain == other.plain

        def __str__(self):
            return f"PlainView({self.file}, sha256 {self.digest or 'none':.8})"

    return PlainView
