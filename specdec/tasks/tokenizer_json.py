"""Vocabularies from a `tokenizer.json` or a `vocab.json`, Hugging Face's files of tokenizers."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import os
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec.tasks import pieces
from specdec.tasks.added_tokens import Tokenization, cleaned_up
from specdec.tasks.bpe import Bpe, from_json, from_merges
from specdec.tasks.loading import Definition, TaskError, quiet_stderr, read
from specdec.tasks.plain import PlainVocabulary
from specdec.tasks.task_error import no_panic

if TYPE_CHECKING:
    pass

PROBED = 64  # characters
EOS, UNKNOWN = "</s>", " \u2047 "  # what SentencePiece writes for an unknown piece


@dataclasses.dataclass(frozen=True)
class TokenizerJson(Definition):
    """A `tokenizer.json` of a T5, or one of a decoder-only model; see `bpe` for the latter.

    A T5's has a Unigram model, its normalizer, and its sentinels if it has any. Ids are those of
    transformers, and of the SentencePiece model from which the file was made. The latter may differ
    for decomposed characters, as in some Korean texts, because only the file composes them (NFC).
    `</s>` that is written out in a text is ordinary text.

    Args:
      path: local, or a gs:// address. For a decoder-only model it may be a `vocab.json`, next to
        which `merges.txt` is.
      tokenization: the settings in the tokenizer's other files, with which decoded texts equal
        transformers' too. Without them, a sentinel in a text is a separate word, as in seqio's
        texts. A decoder-only model needs them.
    """

    path: str
    tokenization: Tokenization | None = dataclasses.field(default=None, repr=False)

    def plain(self) -> PlainVocabulary:
        return _tokenizer(self)


class Tokenizer(PlainVocabulary):
    """A T5's `tokenizer.json`, without truncation, padding and special tokens in texts."""

    def __init__(self, file: str, text: str, tokenization: Tokenization | None = None):
        from tokenizers import Tokenizer as Backend

        self._tokenization = tokenization
        self.file, self._names = file, pieces.of_tokenizer(text)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        record: Any = copy.deepcopy(pieces.parse(text))
        vocab = record["model"]["vocab"]
        added = {token["id"]: token for token in record.get("added_tokens") or ()}
        control = {
            id
            for id, token in added.items()
            if id < len(vocab) and token.get("special") and not _is_sentinel(token["content"])
        }
        names = [name for name, _ in vocab]
        if 0 not in control or EOS not in names:
            raise ValueError(f"it does not pad with id 0, or has no {EOS}; use a T5's")
        self.eos_id, self.unk_id = names.index(EOS), record["model"]["unk_id"]
        self.pad_id = None if self.unk_id == 0 else 0
        for id in control | {self.unk_id}:  # no piece of a text has a space in it
            vocab[id][0] = f" {names[id]}"
        if pieces.BYTES <= set(names):  # T5Tokenizer of transformers 5 saves no byte fallback
            record["model"]["byte_fallback"] = True
            steps = [{"type": "ByteFallback"}, record["decoder"]]
            record["decoder"] = {"type": "Sequence", "decoders": steps}
        ordinary = [token for id, token in added.items() if id not in control]
        record |= dict.fromkeys(["post_processor", "truncation", "padding"])
        self.backend = Backend.from_str(json.dumps(record | {"added_tokens": ordinary}))
        self._pieces = [self._shown(id, control) for id in range(self.backend.get_vocab_size())]
        self.vocab_size, self.extra_ids = len(self._pieces), pieces.sentinels(text)

    def encode(self, text: str) -> list[int]:
        with no_panic(self.file):
            return self.backend.encode(text, add_special_tokens=False).ids

    def pieces(self) -> list[str]:
        return self._names

    def _text(self, ids: Sequence[int]) -> str:
        shown = [self._pieces[id] for id in ids]
        with no_panic(self.file):
            text = self.backend.decoder.decode([piece for piece in shown if piece])
        settings = self._tokenization
        return cleaned_up(text) if settings is not None and settings.clean_up else text

    def _shown(self, id: int, control: set[int]) -> str:
        """Returns the text of an id: "" for a control token; a sentinel as a separate word."""
        if id == self.unk_id:
            return UNKNOWN
        name = self.backend.id_to_token(id) or ""
        if _is_sentinel(name) and self._tokenization is None:
            return f"▁{name.removeprefix('▁')}"
        return "" if id in control else name


def _is_sentinel(name: str) -> bool:
    return pieces.SENTINEL.fullmatch(name) is not None


@functools.cache
def _tokenizer(definition: TokenizerJson) -> PlainVocabulary:
    path, tokenization = definition.path, definition.tokenization
    content = read(path, "tokenizer.json")
    try:
        with no_panic(path), quiet_stderr():  # the library reports its panics there
            vocabulary = _made(path, content.decode("utf-8"), tokenization)
            for character in string.printable:  # a pattern that backtracks for ever fails here
                with contextlib.suppress(Exception):  # a panic is no Exception
                    vocabulary.backend.encode(f"{character * PROBED}\0")
            return vocabulary
    except TaskError:
        raise
    except ImportError as error:
        raise TaskError(
            f"vocabulary {definition.path} needs the package tokenizers; pip install tokenizers"
        ) from error
    except Exception as error:  # tokenizers raises plain ones
        raise TaskError(f"vocabulary {definition.path} cannot be used: {error}") from error


def _made(path: str, text: str, tokenization: Tokenization | None) -> Tokenizer | Bpe:
    if os.path.basename(path) == pieces.VOCAB:
        return _of_merges(path, text, tokenization or Tokenization())
    if not pieces.is_bpe(text):
        return Tokenizer(path, text, tokenization)
    tokenization = tokenization or Tokenization()
    return Bpe(path, text.encode(), from_json(text, tokenization.framing), tokenization)


def _of_merges(path: str, vocab: str, tokenization: Tokenization) -> Bpe:
    merges = read(path.removesuffix(pieces.VOCAB) + pieces.MERGES, pieces.MERGES)
    merges = merges.decode("utf-8-sig")
    tokenizer = from_merges(vocab, merges, tokenization.framing)
    return Bpe(path, (vocab + merges).encode(), tokenizer, tokenization)
