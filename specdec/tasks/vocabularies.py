"""Vocabularies as small frozen descriptions, which gin can bind and tasks can compare."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from specdec.tasks.errors import TaskError
from specdec.tasks.loading import load_seqio, quiet_stderr

if TYPE_CHECKING:
    from seqio import Vocabulary

PATIENCE = 20  # seconds to read a vocabulary from a network


class VocabularyDefinition(Protocol):
    """Hashable, and able to build the seqio vocabulary it describes."""

    def load(self) -> Vocabulary: ...


@dataclasses.dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model with T5's ids (0 padding, 1 EOS, 2 unknown).

    `path` is local or a gs:// address; `extra_ids` sentinels are added behind the pieces (T5: 100).
    """

    path: str
    extra_ids: int = 0

    def load(self) -> Vocabulary:
        """Raises TaskError if there is no such file or it is not a SentencePiece model."""
        if "://" not in self.path:
            self._check()
        vocabulary = _sentencepiece(self)
        refuse_unreachable(vocabulary)
        return vocabulary

    def _check(self) -> None:
        from sentencepiece import SentencePieceProcessor

        if not os.path.isfile(self.path):
            raise TaskError(f"vocabulary {self.path} is not a file; give a SentencePiece .model")
        try:
            SentencePieceProcessor(model_file=self.path)
        except RuntimeError as error:
            raise TaskError(
                f"vocabulary {self.path} is not a SentencePiece model: {error}"
            ) from error


@dataclasses.dataclass(frozen=True)
class Bytes:
    """ByT5's vocabulary: UTF-8 bytes from id 3 on, then `extra_ids` sentinels (ByT5: 125)."""

    extra_ids: int = 0

    def load(self) -> Vocabulary:
        return load_seqio().ByteVocabulary(extra_ids=self.extra_ids)


def recorded_vocabulary(path: str | os.PathLike | None, extra_ids: int) -> VocabularyDefinition:
    """Of what `checkpoints.Vocabulary` records: bytes if the path is None."""
    return Bytes(extra_ids) if path is None else SentencePiece(os.fspath(path), extra_ids)


@functools.cache
def _sentencepiece(definition: SentencePiece) -> Vocabulary:
    return load_seqio().SentencePieceVocabulary(definition.path, definition.extra_ids)


def refuse_unreachable(vocabulary: Any) -> None:
    """Reads a SentencePiece model that is on a network now, and gives up after a while.

    TensorFlow would try for minutes, in the middle of a run. Raises TaskError.
    """
    path = getattr(vocabulary, "sentencepiece_model_file", "")
    if "://" not in path:
        return
    failures = [f"no answer in {PATIENCE} s"]

    def read():
        try:
            vocabulary.load_model()
            failures.clear()
        except Exception as error:  # of TensorFlow's file systems, or of SentencePiece
            failures[0] = str(error).partition("\n")[0]

    thread = threading.Thread(target=read, daemon=True)
    with quiet_stderr():
        thread.start()
        thread.join(PATIENCE)
    if failures:
        raise TaskError(
            f"vocabulary {path} cannot be read ({failures[0]}); name a copy on this machine, as "
            "with --gin.VOCABULARY_PATH=\"'FILE'\""
        )


def same_vocabulary(a: Vocabulary, b: Vocabulary) -> bool:
    """Whether ids mean the same text; two copies of one SentencePiece file are the same."""
    models = getattr(a, "sp_model", None), getattr(b, "sp_model", None)
    return a == b if models == (None, None) else models[0] == models[1]


def detokenize(vocabulary: Vocabulary, ids: Iterable[int]) -> str:
    """The text of `ids` up to the first EOS.

    Ids that the vocabulary lacks (models pad their output to a round width) read as unknown.
    """
    return vocabulary.decode([int(i) for i in ids])
