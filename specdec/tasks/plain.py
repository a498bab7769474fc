"""Vocabularies for texts alone: ids and texts are those of seqio's, without TensorFlow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from specdec import pieces

BYTES, SPECIAL = 256, 3  # of ByT5: padding, EOS and unknown come before the bytes


class PlainVocabulary:
    """What seqio's vocabularies do with texts.

    file, digest: what it was read from, and the SHA-256 of that, in hexadecimal; None for bytes.
    """

    pad_id: ClassVar[int] = 0
    eos_id: int
    unk_id: int
    vocab_size: int
    extra_ids: int
    file: str | None = None
    digest: str | None = None

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without EOS."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids up to the first EOS; those that it lacks are read as unknown."""
        known = [int(id) if id < self.vocab_size else self.unk_id for id in ids]
        end = known.index(self.eos_id) if self.eos_id in known else len(known)
        return self._text(known[:end])

    def pieces(self) -> list[str]:
        """What each id stands for, sentinels aside."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        key = "digest", "vocab_size", "extra_ids"
        return all(getattr(other, name, -1) == getattr(self, name) for name in key)

    __hash__ = None  # type: ignore[assignment]

    def _text(self, ids: Sequence[int]) -> str:
        raise NotImplementedError


class PlainBytes(PlainVocabulary):
    """ByT5's UTF-8 bytes."""

    eos_id, unk_id = 1, 2

    def __init__(self, extra_ids: int):
        self.extra_ids, self.vocab_size = extra_ids, SPECIAL + BYTES + extra_ids

    def encode(self, text: str) -> list[int]:
        return [byte + SPECIAL for byte in text.encode("utf-8")]

    def pieces(self) -> list[str]:
        return []

    def _text(self, ids: Sequence[int]) -> str:
        kept = (id - SPECIAL for id in ids if SPECIAL <= id < SPECIAL + BYTES)
        return bytes(kept).decode("utf-8", errors="ignore")


class PlainSentencePiece(PlainVocabulary):
    """A SentencePiece model with sentinels behind its pieces, the last one first, as T5's are.

    Raises:
      RuntimeError, ValueError: the bytes are not those of a SentencePiece model.
    """

    def __init__(self, file: str, serialized: bytes, extra_ids: int):
        from sentencepiece import SentencePieceProcessor

        if not serialized:
            raise ValueError("it is empty")
        if extra_ids:
            serialized = _with_sentinels(serialized, extra_ids)
        self.tokenizer = SentencePieceProcessor(model_proto=serialized)
        self.file, self.extra_ids = file, extra_ids
        self.digest = hashlib.sha256(serialized).hexdigest()
        self.eos_id, self.unk_id = self.tokenizer.eos_id(), self.tokenizer.unk_id()
        self.vocab_size = self.tokenizer.get_piece_size()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def pieces(self) -> list[str]:
        return pieces.of_sentencepiece(self.tokenizer)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids))


def _with_sentinels(serialized: bytes, extra_ids: int) -> bytes:
    from sentencepiece import sentencepiece_model_pb2

    record: Any = sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore
    user_defined = type(record).SentencePiece.USER_DEFINED
    for number in reversed(range(extra_ids)):
        record.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=user_defined)
    return record.SerializeToString()
