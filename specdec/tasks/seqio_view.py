"""A vocabulary for texts alone, as one that seqio's tasks take."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec.tasks.loading import load_seqio
from specdec.tasks.plain import PlainVocabulary

if TYPE_CHECKING:
    from seqio import Vocabulary


def as_seqio(plain: PlainVocabulary) -> Vocabulary:
    """Returns the vocabulary for seqio's tasks: the same ids and texts."""
    return _seqio_class()(plain)


@functools.cache
def _seqio_class() -> Any:
    """Makes the class that seqio knows at the first call: seqio is seconds to import."""
    seqio = load_seqio()
    import tensorflow as tf

    class PlainView(seqio.Vocabulary):
        """seqio's view of a `PlainVocabulary`."""

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
