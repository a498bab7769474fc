"""Vocabularies as small frozen descriptions, which gin can bind and tasks can compare."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeGuard

import numpy as np

from specdec.common.values import Rule, is_integer, is_word
from specdec.tasks import pieces
from specdec.tasks.added_tokens import Tokenization
from specdec.tasks.bpe import Bpe, from_sentencepiece
from specdec.tasks.loading import Definition, TaskError, load_seqio, read, read_in_time
from specdec.tasks.media import Illustrated, Spoken, WithPictures, WithSound
from specdec.tasks.plain import (
    Inputs,
    InputsShape,
    PlainBytes,
    PlainSentencePiece,
    PlainVocabulary,
    VocabularyDefinition,
    WithAddedTokens,
    without_media,
)
from specdec.tasks.series import SeriesBins, is_series
from specdec.tasks.tokenizer_json import TokenizerJson

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from seqio import SentencePieceVocabulary, Vocabulary

Sentinels = Annotated[
    int, Rule(lambda value: is_integer(value, 0), "the number of sentinels, from 0 on")
]


class LoadedVocabulary(Protocol):
    """A vocabulary of ours, or one of seqio's."""

    @property
    def pad_id(self) -> int | None: ...

    @property
    def eos_id(self) -> Any: ...  # an integer, which seqio's type does not say

    @property
    def unk_id(self) -> Any: ...  # an integer too

    @property
    def vocab_size(self) -> int: ...

    @property
    def extra_ids(self) -> int: ...

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, ids: Iterable[int], /) -> str: ...


@dataclasses.dataclass(frozen=True)
class SentencePiece(Definition):
    """A SentencePiece model, which defines the ids of padding, EOS and unknown pieces.

    Args:
      path: local, or a gs:// address.
      extra_ids: the number of sentinels that are added after the pieces (T5: 100).
      tokenization: the settings of transformers' tokenizer, which finds sentinels and other added
        tokens inside of words too. None for seqio's vocabulary. If they have `framing`, the model
        has byte-pair merges, as LLaMA's `tokenizer.model` has.
    """

    path: Annotated[str, Rule(is_word, "that of a .model file")]
    extra_ids: Sentinels = 0
    tokenization: Tokenization | None = dataclasses.field(default=None, repr=False)

    def plain(self) -> PlainVocabulary:
        return _sentencepiece(self)

    def load(self) -> Vocabulary:
        self.plain()  # raises if it cannot be read
        return _seqio_sentencepiece(self) if self.tokenization is None else super().load()


@dataclasses.dataclass(frozen=True)
class Bytes(Definition):
    """The vocabulary of ByT5: UTF-8 bytes from id 3 on, then sentinels.

    Args:
      extra_ids: the number of sentinels (ByT5: 125).
      tokenization: the settings of transformers' tokenizer, whose texts may have added tokens.
    """

    extra_ids: Sentinels = 0
    tokenization: Tokenization | None = dataclasses.field(default=None, repr=False)

    def plain(self) -> PlainVocabulary:
        plain = PlainBytes(self.extra_ids)
        return WithAddedTokens(plain, self.tokenization) if self.tokenization else plain

    def load(self) -> Vocabulary:
        if self.tokenization is not None:
            return super().load()
        return load_seqio().ByteVocabulary(extra_ids=self.extra_ids)


def for_texts(definition: VocabularyDefinition) -> LoadedVocabulary:
    """Returns the vocabulary for texts, without TensorFlow if the definition allows it.

    Args:
      definition: the vocabulary's description.
    """
    return definition.plain() if hasattr(definition, "plain") else definition.load()


def recorded_vocabulary(
    path: str | os.PathLike | None,
    extra_ids: int,
    tokenization: Tokenization | None = None,
    _: object = None,
    media: WithPictures | WithSound | None = None,
) -> VocabularyDefinition:
    """Returns the vocabulary that the fields of a `checkpoints.Vocabulary` describe.

    Args:
      path: the vocabulary's file; None for bytes.
      extra_ids: the number of sentinels.
      tokenization: the settings in the tokenizer's other files; None without such files.
      media: how texts name pictures or sound; None if they do not.
    """
    definition: VocabularyDefinition = Bytes(extra_ids, tokenization)
    if path is not None:
        definition = vocabulary_file(os.fspath(path), extra_ids, tokenization)
    return definition if media is None else dataclasses.replace(media, text=definition)


def vocabulary_file(
    path: str, extra_ids: int = 0, tokenization: Tokenization | None = None
) -> SentencePiece | TokenizerJson | SeriesBins:
    """Returns the description of a vocabulary, whose kind is known from the file's name.

    Args:
      path: a SentencePiece model, a tokenizer.json, which has its own number of sentinels, or a
        Chronos model's config.json.
      extra_ids: the number of sentinels of a SentencePiece model.
      tokenization: the settings in the tokenizer's other files; None without such files.
    """
    if is_series(path):
        return SeriesBins(path)
    if path.endswith(".json"):
        return TokenizerJson(path, tokenization)
    return SentencePiece(path, extra_ids, tokenization)


@functools.cache
def _sentencepiece(definition: SentencePiece) -> PlainVocabulary:
    path = definition.path
    serialized = read(path, "SentencePiece .model")
    tokenization = definition.tokenization
    try:
        if tokenization is not None and tokenization.framing is not None:
            return Bpe(
                path, serialized, from_sentencepiece(serialized, tokenization.legacy), tokenization
            )
        plain = PlainSentencePiece(path, serialized, definition.extra_ids)
    except TaskError:
        raise
    except Exception as error:  # of SentencePiece or of protobuf
        line = str(error).partition("\n")[0]
        if "declares" in line:
            raise TaskError(f"vocabulary {path}: {line}") from error
        remedy = "give a .model file"
        if path.endswith(".json"):
            remedy = "a tokenizer.json is @tasks.TokenizerJson(), with tasks.TokenizerJson.path"
        raise TaskError(
            f"vocabulary {path} is not a SentencePiece model ({line}); {remedy}"
        ) from error
    return plain if tokenization is None else WithAddedTokens(plain, tokenization)


@functools.cache
def _seqio_sentencepiece(definition: SentencePiece) -> Vocabulary:
    return load_seqio().SentencePieceVocabulary(definition.path, definition.extra_ids)


def special_ids(vocabulary: LoadedVocabulary) -> tuple[int | None, int, int]:
    """Returns the ids of padding (None if only the model defines it), EOS and unknown pieces.

    Args:
      vocabulary: any vocabulary.

    Raises:
      ValueError: a SentencePiece model of seqio has no EOS, or no unknown piece.
    """
    if _is_sentencepiece(vocabulary):  # seqio's, which always pads with 0
        return pieces.special_ids(vocabulary.tokenizer)
    plain = _own(vocabulary) or vocabulary
    return plain.pad_id, plain.eos_id, plain.unk_id


def input_ids(vocabulary: LoadedVocabulary, text: str, length: int | None = None) -> list[int]:
    """Returns the ids of an input, with BOS, EOS or a chat template if its vocabulary has them.

    Args:
      vocabulary: any vocabulary. Inputs of seqio's end in EOS.
      text: the text.
      length: the most ids: a prompt loses its first tokens, other texts their last; None for all.
    """
    if (plain := _own(vocabulary)) is not None:
        return plain.input_ids(text, length)
    ids = vocabulary.encode(text)
    return [*ids[: None if length is None else length - 1], vocabulary.eos_id]


def files_of(vocabulary: LoadedVocabulary, text: str) -> list[str]:
    """Returns the names of pictures or of sound in the text of an input.

    Args:
      vocabulary: any vocabulary.
      text: the text.
    """
    plain = _own(vocabulary)
    return [] if plain is None else plain.files_of(text)


def is_sound(vocabulary: LoadedVocabulary) -> bool:
    """Returns whether the texts of inputs name files of sound.

    Args:
      vocabulary: any vocabulary.
    """
    return isinstance(_own(vocabulary), Spoken)


def inputs_of(
    vocabulary: LoadedVocabulary,
    ids: np.ndarray,
    texts: Sequence[str],
    shape: Callable[[int, int], InputsShape],
) -> Inputs:
    """Returns a batch of a target's inputs: the ids, ids with pixels, or features of sound.

    Args:
      vocabulary: any vocabulary.
      ids: [B, S] int32.
      texts: the texts of the first rows; further rows are padding.
      shape: (rows, length) -> the shapes of the inputs, `Target.inputs_shape`.
    """
    plain = _own(vocabulary)
    if plain is None:
        return without_media(ids, shape(*ids.shape))
    return plain.inputs(ids, texts, shape(*ids.shape))


def inputs_end(vocabulary: LoadedVocabulary) -> bool:
    """Returns whether inputs end in EOS, as in T5's tasks.

    Args:
      vocabulary: any vocabulary.
    """
    plain = _own(vocabulary)
    return plain is None or plain.ends


def has_prompts(vocabulary: LoadedVocabulary) -> bool:
    """Returns whether inputs are prompts, which a decoder-only model continues.

    Args:
      vocabulary: any vocabulary.
    """
    plain = _own(vocabulary)
    return plain is not None and plain.continued


def declares_begin(vocabulary: LoadedVocabulary) -> bool:
    """Returns whether the vocabulary is a SentencePiece model with BOS, which T5's lacks.

    Args:
      vocabulary: any vocabulary.
    """
    text = _text_of(vocabulary)
    base = text.base if isinstance(text, WithAddedTokens) else text
    return isinstance(base, PlainSentencePiece) and base.tokenizer.bos_id() >= 0


def chatting(definition: VocabularyDefinition) -> VocabularyDefinition:
    """Returns a vocabulary that puts each input, a user's message, into its chat template.

    Args:
      definition: the vocabulary that was saved with the checkpoint.

    Raises:
      TaskError: it has no chat template.
    """
    if isinstance(definition, WithPictures | WithSound):
        assert definition.text is not None
        return dataclasses.replace(definition, text=chatting(definition.text))
    if isinstance(definition, SentencePiece | TokenizerJson):
        tokenization = definition.tokenization
        if (
            tokenization is not None
            and tokenization.framing is not None
            and tokenization.framing.chat_template is not None
        ):
            framing = dataclasses.replace(tokenization.framing, chat=True)
            tokenization = dataclasses.replace(tokenization, framing=framing)
            return dataclasses.replace(definition, tokenization=tokenization)
    path = getattr(definition, "path", None)
    where = definition if path is None else os.path.dirname(path) or os.curdir
    raise TaskError(
        f"{where} has no chat template, which is chat_template.jinja or chat_template in "
        "tokenizer_config.json; decode without chat"
    )


def tokenization_of(vocabulary: LoadedVocabulary) -> Tokenization | None:
    """Returns the settings that a vocabulary has from its tokenizer's other files, or None.

    Args:
      vocabulary: any vocabulary.
    """
    text = _text_of(vocabulary)
    return text.tokenization if isinstance(text, WithAddedTokens | Bpe) else None


def _own(vocabulary: object) -> PlainVocabulary | None:
    """Returns a vocabulary of ours, even if it is wrapped for seqio; None for seqio's own."""
    plain = getattr(vocabulary, "plain", vocabulary)
    return plain if isinstance(plain, PlainVocabulary) else None


def _text_of(vocabulary: object) -> PlainVocabulary | None:
    """Returns a vocabulary of ours without pictures and sound; None for seqio's own."""
    plain = _own(vocabulary)
    return plain.base if isinstance(plain, Illustrated | Spoken) else plain


def _model_of(vocabulary: object) -> bytes | None:
    """Returns the SentencePiece model of one of seqio's vocabularies; None for others."""
    return getattr(vocabulary, "sp_model", None)


class _SentencePiece(LoadedVocabulary, Protocol):
    """One of seqio's vocabularies that have a SentencePiece model."""

    @property
    def sp_model(self) -> bytes: ...

    @property
    def tokenizer(self) -> SentencePieceProcessor: ...


def _is_sentencepiece(vocabulary: LoadedVocabulary) -> TypeGuard[_SentencePiece]:
    return _model_of(vocabulary) is not None


def refuse_unreachable(vocabulary: SentencePieceVocabulary) -> None:
    """Reads a SentencePiece model that is on a network, and raises TaskError if that fails."""
    path = file_of(vocabulary) if _own(vocabulary) is None else None
    if path is not None and "://" in path:
        read_in_time(path, vocabulary.load_model)


def same_vocabulary(a: LoadedVocabulary, b: LoadedVocabulary) -> bool:
    """Returns whether each id means the same text in two vocabularies.

    Two copies of one SentencePiece file are the same, and so is the tokenizer.json made from it.

    Args:
      a: any vocabulary.
      b: any vocabulary.
    """
    if digest(a) is not None and digest(a) == digest(b):
        return True
    if _is_bytes(a) and _is_bytes(b):
        return a.extra_ids == b.extra_ids
    sentinels = a.extra_ids == b.extra_ids or _is_tokenizer(a) or _is_tokenizer(b)
    return a == b or (sentinels and (names := _pieces(a)) is not None and names == _pieces(b))


def digest(vocabulary: LoadedVocabulary) -> str | None:
    """Returns the SHA-256 of the vocabulary's file, in hexadecimal; None for UTF-8 bytes.

    Args:
      vocabulary: any vocabulary.
    """
    if (plain := _own(vocabulary)) is not None:
        return plain.digest
    model = _model_of(vocabulary)
    return None if model is None else hashlib.sha256(model).hexdigest()


def file_of(vocabulary: LoadedVocabulary) -> str | None:
    """Returns the path that the vocabulary was read from, None if there is none.

    Args:
      vocabulary: any vocabulary.
    """
    if (plain := _own(vocabulary)) is not None:
        return plain.file
    return getattr(vocabulary, "sentencepiece_model_file", None) or None


def _is_bytes(vocabulary: LoadedVocabulary) -> bool:
    """Returns whether ids are bytes and sentinels, without other added tokens."""
    if digest(vocabulary) is not None:
        return False
    text = _text_of(vocabulary) or vocabulary
    base = text.base if isinstance(text, WithAddedTokens) else text
    return type(base).__name__ in ("PlainBytes", "ByteVocabulary")


def _is_tokenizer(vocabulary: LoadedVocabulary) -> bool:
    return (file_of(vocabulary) or "").endswith(".json")


def _pieces(vocabulary: LoadedVocabulary) -> list[str] | None:
    """Returns the pieces by id, None for a vocabulary that is not read from a file."""
    if (plain := _own(vocabulary)) is not None:
        return plain.pieces() if plain.digest else None
    return pieces.of_sentencepiece(vocabulary.tokenizer) if _is_sentencepiece(vocabulary) else None


def byte_ids(vocabulary: LoadedVocabulary) -> frozenset[int]:
    """Returns the ids of pieces that stand for a byte, such as <0x0A>, next to pieces of text.

    Args:
      vocabulary: any vocabulary.
    """
    names = _pieces(vocabulary) or []
    return frozenset(id for id, name in enumerate(names) if name in pieces.BYTES)


def output_ids(vocabulary: LoadedVocabulary, text: str, source: str) -> list[int]:
    """Returns the ids of an output, without EOS.

    Args:
      vocabulary: any vocabulary.
      text: the output.
      source: the text of its input, by which a series is scaled.
    """
    plain = _own(vocabulary)
    return list(vocabulary.encode(text)) if plain is None else plain.output_ids(text, source)


def detokenize(vocabulary: LoadedVocabulary, ids: Iterable[int], source: str = "") -> str:
    """Returns the text of `ids` up to the first EOS.

    Ids after the vocabulary's last, which wider output layers have, read as unknown pieces.

    Args:
      vocabulary: any vocabulary.
      ids: token ids.
      source: the text of the input to which the ids are an output; it scales a series.
    """
    plain, ids = _own(vocabulary) if source else None, [int(i) for i in ids]
    return vocabulary.decode(ids) if plain is None else plain.output_text(ids, source)
