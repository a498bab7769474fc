"""The pieces of a vocabulary file: the text of each id, except sentinels.

Two files with the same pieces give ids the same meaning, even if one is a SentencePiece model and
the other the `tokenizer.json` made from it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

from msgspec import Meta

from specdec.common.json_values import parsed

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SENTINEL = re.compile(r"▁?(<extra_id_\d+>)")  # seqio's begin with the mark of a space
VOCAB, MERGES = "vocab.json", "merges.txt"  # two files of one tokenizer
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # for characters without a piece


GROWTH = 1000  # the most characters that a tokenizer may make of one
Id = Annotated[int, Meta(ge=0, lt=2**24)]  # lists of all ids are made


class _Added(TypedDict):
    id: Id
    content: str
    special: NotRequired[bool]


class _Model(TypedDict):
    type: str  # Unigram or BPE
    vocab: list[tuple[str, float]] | dict[str, Id]  # with scores, or with ids
    unk_id: NotRequired[Id | None]


class TokenizerFile(TypedDict):
    """The part of a `tokenizer.json` that is read here."""

    model: _Model
    added_tokens: NotRequired[list[_Added] | None]
    normalizer: NotRequired[dict[str, object] | None]
    decoder: NotRequired[dict[str, object] | None]


def of_sentencepiece(processor: SentencePieceProcessor) -> list[str]:
    """Returns a `SentencePieceProcessor`'s pieces in the order of their ids, except sentinels."""
    return _plain(map(processor.id_to_piece, range(processor.get_piece_size())))


def of_tokenizer(text: str) -> list[str]:
    """Returns a tokenizer's pieces in the order of their ids, except sentinels.

    `text` is the content of its `tokenizer.json`. Raises ValueError if `parse` refuses it.
    """
    return _plain(_names(parse(text)))


def special_ids(processor: SentencePieceProcessor) -> tuple[int | None, int, int]:
    """Returns a `SentencePieceProcessor`'s ids of padding, EOS and unknown pieces.

    The id of padding is None if the model declares none.
    """
    pad, end, unknown = processor.pad_id(), processor.eos_id(), processor.unk_id()
    if pad < 0 and processor.get_piece_size() and processor.is_control(0) and end:
        pad = 0  # a control symbol that was not declared as padding
    if min(end, unknown) < 0:
        raise ValueError(
            "it declares no EOS or no unknown piece; give the SentencePiece file that came with "
            "the model"
        )
    return None if pad < 0 else pad, end, unknown


def names_of_tokenizer(text: str) -> list[str]:
    """Returns a tokenizer's pieces in the order of their ids, with sentinels.

    `text` is the content of its `tokenizer.json`. Raises ValueError if `parse` refuses it.
    """
    return _names(parse(text))


def added_to_tokenizer(text: str) -> dict[str, int]:
    """Returns {content: id} of the added tokens of a `tokenizer.json`; see `parse`."""
    return {token["content"]: token["id"] for token in parse(text).get("added_tokens") or ()}


def sentinels(text: str) -> int:
    """Counts the `<extra_id_N>` of a `tokenizer.json`; see `parse`."""
    return sum(SENTINEL.fullmatch(name) is not None for name in _names(parse(text)))


def is_bpe(text: str) -> bool:
    """Returns whether a `tokenizer.json` has byte-pair merges, unlike a T5's; see `parse`."""
    return parse(text)["model"]["type"] == "BPE"


@functools.lru_cache(maxsize=2)  # a target's and a draft's, which take a second to parse
def parse(text: str) -> TokenizerFile:
    """Parses a `tokenizer.json`. The result is shared, and must not be changed."""
    try:
        record = parsed(text, TokenizerFile)
    except ValueError as error:
        raise ValueError(f"it {error}; copy it again") from error
    kind, forms = record["model"]["type"], {"Unigram": list, "BPE": dict}
    if kind not in forms or not isinstance(record["model"]["vocab"], forms[kind]):
        raise ValueError(
            f"its model is {kind}, and those read are Unigram and BPE; name a SentencePiece .model"
        )
    for part in (record.get("normalizer"), record.get("decoder")):
        if (growth := _growth(part)) > GROWTH:
            raise ValueError(
                f"it writes up to {growth:,} characters for one (Replace), and {GROWTH:,} are the "
                "most; use the model's own tokenizer"
            )
    return record


def _growth(part: object) -> int:
    """Returns the most characters that a normalizer's or decoder's Replace steps make of one."""
    if isinstance(part, dict):
        content = part.get("content")
        factor = len(content) if part.get("type") == "Replace" and isinstance(content, str) else 1
        return max(factor, 1) * math.prod(map(_growth, part.values()))
    return math.prod(map(_growth, part)) if isinstance(part, list) else 1


def of_vocab(text: str) -> dict[str, int]:
    """Returns the ids of a `vocab.json` by their names; raises ValueError as `parse` does."""
    try:
        return parsed(text, dict[str, Id])
    except ValueError as error:
        raise ValueError(f"it {error}; copy it again") from error


def _names(record: TokenizerFile) -> list[str]:
    """Returns the pieces by id, with sentinels; added tokens have the ids after the model's."""
    vocab = record["model"]["vocab"]
    if isinstance(vocab, dict):
        names = sorted(vocab, key=vocab.__getitem__)
    else:
        names = [name for name, _ in vocab]
    added = sorted((token["id"], token["content"]) for token in record.get("added_tokens") or ())
    return names + [name for id, name in added if id >= len(names)]


def _plain(names: Iterable[str]) -> list[str]:
    return [name for name in names if not SENTINEL.fullmatch(name)]
