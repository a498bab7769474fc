"""Vocabularies that encode and decode texts as seqio does, but without TensorFlow."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from specdec.tasks import pieces
from specdec.tasks.added_tokens import AddedToken, Tokenization, cleaned_up, split
from specdec.tasks.task_error import TaskError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from seqio import Vocabulary

BYTES, SPECIAL = 256, 3  # of ByT5: padding, EOS and unknown come before the bytes
SPACE = "▁"  # SentencePiece's mark of a space

# What a target reads: ids, features of sound, or several arrays by name, such as tokens and pixels.
# Sounds of several lengths are a list.
Inputs: TypeAlias = np.ndarray | dict[str, np.ndarray] | list[np.ndarray]


class ArrayShape(Protocol):
    """The shape and the dtype of an array, such as a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


InputsShape: TypeAlias = ArrayShape | Mapping[str, ArrayShape]  # see `Target.inputs_shape`


def without_media(ids: np.ndarray, shape: InputsShape) -> Inputs:
    """Returns a target's inputs for a batch of ids: with zeros as pixels if it reads pictures."""
    if isinstance(shape, Mapping):
        zeros = {name: np.zeros(array.shape, array.dtype) for name, array in shape.items()}
        return zeros | {"tokens": ids}
    if shape.dtype != np.int32:
        raise TaskError(
            "the target reads sound, and the vocabulary is one of texts alone; give "
            "tasks.WithSound, or the target's own vocabulary"
        )
    return ids


class PlainVocabulary:
    """A vocabulary that encodes and decodes texts like seqio's."""

    pad_id: int | None = 0  # the id of padding; None if only the model defines it
    eos_id: int
    unk_id: int  # the id of unknown pieces; that of EOS if every text has pieces
    vocab_size: int
    extra_ids: int
    file: str | None = None  # the file that it was read from; None for bytes
    digest: str | None = None  # the file's SHA-256 in hexadecimal; None for bytes
    before: tuple[int, ...] = ()  # the ids before each input, which are those of BOS or none
    ends: bool = True  # whether an input ends in EOS
    continued: bool = False  # whether inputs are prompts, which a decoder-only model continues

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without EOS."""
        raise NotImplementedError

    def input_ids(self, text: str, length: int | None = None) -> list[int]:
        """Returns the ids of an input, at most `length` of them; see `framed`."""
        return self.framed(self.encode(text), length)

    def framed(self, ids: Sequence[int], length: int | None = None) -> list[int]:
        """Returns the ids of an input: `before`, the text's own ids, and EOS if `ends`."""
        end = [self.eos_id] if self.ends else []
        room = None if length is None else max(length - len(self.before) - len(end), 0)
        return [*self.before, *self.cut(ids, room), *end]

    def cut(self, ids: Sequence[int], room: int | None) -> list[int]:
        """Returns at most `room` ids, or all: the last ones of a prompt, else the first ones."""
        if room is None or len(ids) <= room:
            return list(ids)
        return list(ids[len(ids) - room :] if self.continued else ids[:room])

    def files_of(self, text: str) -> list[str]:
        """Returns the names of pictures or sounds in the text of an input."""
        del text
        return []

    def inputs(self, ids: np.ndarray, texts: Sequence[str], shape: InputsShape) -> Inputs:
        """Returns a target's inputs of a `shape` for ids [B, S] and the texts of the first rows."""
        del texts
        return without_media(ids, shape)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids up to the first EOS; ids from `vocab_size` on read as unknown."""
        known = [int(id) if id < self.vocab_size else self.unk_id for id in ids]
        end = known.index(self.eos_id) if self.eos_id in known else len(known)
        return self._text(known[:end])

    def output_ids(self, text: str, source: str) -> list[int]:
        """Returns the ids of an output, without EOS; a series' ids depend on its input `source`."""
        del source
        return self.encode(text)

    def output_text(self, ids: Sequence[int], source: str) -> str:
        """Returns the text of an output up to the first EOS; the inverse of `output_ids`."""
        del source
        return self.decode(ids)

    def pieces(self) -> list[str]:
        """Returns the piece of each id, except sentinels."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainVocabulary) and self._key() == other._key()

    def _key(self) -> tuple[str | None, int, int]:
        return self.digest, self.vocab_size, self.extra_ids

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.file or ''})"

    def _text(self, ids: Sequence[int]) -> str:
        raise NotImplementedError


class VocabularyDefinition(Protocol):
    """A hashable description from which a vocabulary can be built."""

    def plain(self) -> PlainVocabulary:
        """Returns the vocabulary for texts, without TensorFlow."""
        ...

    def load(self) -> Vocabulary:
        """Returns the vocabulary for seqio's tasks, with the same ids."""
        ...


class PlainBytes(PlainVocabulary):
    """The UTF-8 bytes of ByT5."""

    eos_id, unk_id = 1, 2

    def __init__(self, extra_ids: int):
        self.extra_ids, self.vocab_size = extra_ids, SPECIAL + BYTES + extra_ids

    def encode(self, text: str) -> list[int]:
        return [byte + SPECIAL for byte in text.encode("utf-8")]

    def pieces(self) -> list[str]:
        return []

    def _text(self, ids: Sequence[int]) -> str:
        byte_values = (id - SPECIAL for id in ids if SPECIAL <= id < SPECIAL + BYTES)
        return bytes(byte_values).decode("utf-8", errors="ignore")


class PlainSentencePiece(PlainVocabulary):
    """A SentencePiece model with sentinels after its pieces, the last one first, like T5's."""

    def __init__(self, file: str, serialized: bytes, extra_ids: int):
        from sentencepiece import SentencePieceProcessor

        if not serialized:
            raise ValueError("it is empty")
        self._serialized = serialized
        if extra_ids:
            model = parsed(serialized)
            user_defined = type(model).SentencePiece.USER_DEFINED
            for number in reversed(range(extra_ids)):
                model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=user_defined)
            serialized = model.SerializeToString()
        self.tokenizer = SentencePieceProcessor(model_proto=serialized)
        self.pad_id, self.eos_id, self.unk_id = pieces.special_ids(self.tokenizer)
        self.file, self.extra_ids = file, extra_ids
        self.digest = hashlib.sha256(serialized).hexdigest()
        self.vocab_size = self.tokenizer.get_piece_size()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def encode_piece(self, text: str) -> list[int]:
        """Returns the ids of text between added tokens, without searching for sentinels."""
        return self._without_sentinels.encode(text)

    def encode_inside(self, text: str) -> list[int]:
        """Returns the ids of a text between added tokens, without adding a space before it.

        SentencePiece drops a space at the start of a text. transformers therefore encodes the name
        of the unknown piece before such a text, and removes that name's pieces afterwards.
        """
        if not text.startswith((SPACE, " ")):
            return self._without_prefix.encode(text)
        before = self.tokenizer.id_to_piece(self.unk_id)
        return self._without_prefix.encode(before + text)[self._pieces_of_unknown :]

    @functools.cached_property
    def _without_sentinels(self) -> SentencePieceProcessor:
        return type(self.tokenizer)(model_proto=self._serialized)

    @functools.cached_property
    def _without_prefix(self) -> SentencePieceProcessor:
        model = parsed(self._serialized)
        model.normalizer_spec.add_dummy_prefix = False
        return type(self.tokenizer)(model_proto=model.SerializeToString())

    @functools.cached_property
    def _pieces_of_unknown(self) -> int:
        return len(self._without_prefix.encode(self.tokenizer.id_to_piece(self.unk_id)))

    def pieces(self) -> list[str]:
        return pieces.of_sentencepiece(self.tokenizer)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids))


def parsed(serialized: bytes) -> Any:
    """Returns the protocol buffer of a SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(serialized)  # type: ignore


class WithAddedTokens(PlainVocabulary):
    """A vocabulary whose texts are split at added tokens, as in transformers 4.

    The tokens of EOS, padding and unknown pieces are not found: `</s>` that is written out in a
    text is ordinary text.
    """

    def __init__(self, base: PlainVocabulary, tokenization: Tokenization):
        self.base, self.tokenization = base, tokenization
        self.pad_id, self.eos_id, self.unk_id = base.pad_id, base.eos_id, base.unk_id
        self.file, self.extra_ids = base.file, base.extra_ids
        self._by_id = {token.id: token for token in tokenization.added}
        self.vocab_size = max([base.vocab_size, *(id + 1 for id in self._by_id)])
        self.others = tuple(
            (token.id, token.content)
            for token in tokenization.added
            if not pieces.SENTINEL.fullmatch(token.content)
        )
        self.digest = base.digest
        if self.others:
            contents = f"{base.digest} {self.others}"
            self.digest = hashlib.sha256(contents.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        legacy = self.tokenization.legacy
        if text and not legacy:  # the mark of a space before it, as T5Tokenizer has it
            text = SPACE + text.replace(SPACE, " ")
        for part in split(text, self.tokenization.added):
            if isinstance(part, AddedToken):
                alone = not legacy and ids == self._encode(SPACE)
                ids = [part.id] if alone and part.special else [*ids, part.id]
            else:
                ids += self._encode(part)
        return ids

    def pieces(self) -> list[str]:
        return self.base.pieces() + [content for _, content in self.others]

    def _encode(self, text: str) -> list[int]:
        if isinstance(self.base, PlainSentencePiece) and not self.tokenization.legacy:
            return self.base.encode_inside(text)
        if isinstance(self.base, PlainSentencePiece):
            return self.base.encode_piece(text)
        return self.base.encode(text)

    def _text(self, ids: Sequence[int]) -> str:
        if isinstance(self.base, PlainBytes):
            text = self._bytes(ids)
        else:
            parts = [self._part(run) for run in _runs(ids, self._by_id)]
            text = " ".join(part for part in parts if part)
        return cleaned_up(text) if self.tokenization.clean_up else text

    def _part(self, run: Sequence[int]) -> str:
        """Returns an added token's content, or the text of other ids without spaces around it."""
        token = self._by_id.get(run[0])
        return self.base.decode(run).strip() if token is None else token.content

    def _bytes(self, ids: Sequence[int]) -> str:
        """Returns the text of bytes and added tokens, even if one stands inside of a character."""
        joined = b""
        for id in ids:
            token = self._by_id.get(id)
            is_byte = SPECIAL <= id < SPECIAL + BYTES
            joined += token.content.encode() if token else bytes([id - SPECIAL] * is_byte)
        return joined.decode("utf-8", errors="ignore")


def _runs(ids: Sequence[int], added: Iterable[int]) -> list[list[int]]:
    """Returns the ids in runs: each added token alone, others together."""
    runs: list[list[int]] = []
    for id in ids:
        if id in added or not runs or runs[-1][-1] in added:
            runs.append([id])
        else:
            runs[-1].append(id)
    return runs
