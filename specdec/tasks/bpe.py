"""Tokenizers with byte-pair merges, of bytes, or of characters with bytes for unknown ones.

LLaMA 1 and 2 have `tokenizer.model` or `tokenizer.json`, LLaMA 3 and T5Gemma have `tokenizer.json`,
and OPT and GPT-2 have `vocab.json` with `merges.txt`. Ids and texts are those of transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from specdec.tasks.added_tokens import Framing, Tokenization
from specdec.tasks.chat import prompts_of
from specdec.tasks.pieces import BYTES, of_vocab
from specdec.tasks.plain import SPACE, PlainVocabulary, parsed
from specdec.tasks.task_error import no_panic

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BPE = 2  # SentencePiece's number of the algorithm
_CONTROL, _USER_DEFINED = 3, 4  # SentencePiece's types of pieces


class Bpe(PlainVocabulary):
    """A tokenizer of the `tokenizers` library. Other files define BOS and EOS of its inputs.

    A special token that is written out in a text is encoded as that token, as in transformers:
    chat templates need this. Decoded texts have no special tokens. A text that continues a prompt
    keeps the space at its start.
    """

    extra_ids = 0

    def __init__(self, file: str, contents: bytes, backend: Tokenizer, tokenization: Tokenization):
        framing = tokenization.framing
        if framing is None:
            raise ValueError(
                "it has byte-pair merges, for which other files define BOS and EOS; put it into "
                "the checkpoint's directory, and set no vocabulary"
            )
        self.file, self.digest = file, hashlib.sha256(contents).hexdigest()
        self.tokenization, self.backend = tokenization, backend
        backend.no_truncation()
        backend.no_padding()
        _add_tokens(backend, tokenization)
        self._ids: Mapping[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size, names = max(self._ids.values()) + 1, dict(framing.names)
        self.eos_id = self._id(names, "eos_token")
        self.unk_id = self._ids.get(names.get("unk_token", ""), self.eos_id)
        self.before, self.ends = self._framing(framing, names)
        self.continued = framing.continued and not self.ends
        self._context = [self._any_piece()] if framing.continued else []
        pad = self._ids.get(names.get("pad_token", ""))
        self.pad_id = None if framing.continued or pad == self.eos_id else pad
        self._chat = None
        if framing.chat and framing.chat_template is not None:
            self._chat = prompts_of(framing.chat_template, names, framing.chat_file)

    def encode(self, text: str) -> list[int]:
        with no_panic(self.file):
            return self.backend.encode(text, add_special_tokens=False).ids

    def input_ids(self, text: str, length: int | None = None) -> list[int]:
        if self._chat is None:
            return super().input_ids(text, length)
        ids = self.encode(self._chat(text))
        count = len(self.before) if tuple(ids[: len(self.before)]) == self.before else 0
        room = None if length is None else max(length - count, 0)
        return ids[:count] + self.cut(ids[count:], room)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids up to the first EOS; after a prompt, it keeps its first space."""
        known = [int(id) for id in ids if 0 <= id < self.vocab_size]
        end = known.index(self.eos_id) if self.eos_id in known else len(known)
        return self._shown([*self._context, *known[:end]])[len(self._shown(self._context)) :]

    def pieces(self) -> list[str]:
        names = [""] * self.vocab_size
        for name, id in self._ids.items():
            names[id] = name
        return names

    def _shown(self, ids: list[int]) -> str:
        with no_panic(self.file):
            return self.backend.decode(ids, skip_special_tokens=True)

    def _id(self, names: Mapping[str, str], role: str) -> int:
        """Returns the id of a special token; raises ValueError if there is no such token."""
        if (id := self._ids.get(names.get(role, ""))) is None:
            raise ValueError(
                f"its {role} is {names.get(role)!r}, which is none of its tokens; set {role} in "
                "tokenizer_config.json"
            )
        return id

    def _framing(self, framing: Framing, names: Mapping[str, str]) -> tuple[tuple[int, ...], bool]:
        """Returns the ids before an input, and whether it ends in EOS."""
        if framing.add_bos is not None or framing.add_eos is not None:
            before = (self._id(names, "bos_token"),) if framing.add_bos else ()
            return before, bool(framing.add_eos)
        text = self._shown([self._any_piece()])
        inside, framed = self.encode(text), self.backend.encode(text).ids
        start = next(i for i in range(len(framed)) if framed[i : i + len(inside)] == inside)
        behind = framed[start + len(inside) :]
        if behind not in ([], [self.eos_id]):
            raise ValueError(
                f"its post-processor puts ids {behind} after a text, and eos_token is "
                f"{self.eos_id}; use the model's own tokenizer"
            )
        return tuple(framed[:start]), bool(behind)

    def _any_piece(self) -> int:
        """Returns the first id whose text is not empty and has no incomplete character."""
        return next(
            id
            for name, id in sorted(self._ids.items(), key=lambda item: item[1])
            if name not in BYTES and (text := self._shown([id])) and "\ufffd" not in text
        )


def from_json(text: str, framing: Framing | None) -> Tokenizer:
    """Returns the tokenizer of a `tokenizer.json`."""
    from tokenizers import Tokenizer, pre_tokenizers

    tokenizer = Tokenizer.from_str(text)
    prefix_space = None if framing is None else framing.prefix_space
    if prefix_space is not None and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        tokenizer.pre_tokenizer.add_prefix_space = prefix_space
    return tokenizer


def from_merges(vocab: str, merges: str, framing: Framing | None) -> Tokenizer:
    """Returns the tokenizer of a `vocab.json` and a `merges.txt`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    lines = [line.removesuffix("\r") for line in merges.split("\n")]
    lines = [line for line in lines if line and not line.startswith("#version")]
    if broken := next((line for line in lines if line.count(" ") != 1), None):
        raise ValueError(f"merges.txt has the line {broken!r}; copy it again")
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=of_vocab(vocab), merges=pairs))
    prefix_space = framing is not None and bool(framing.prefix_space)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def is_bpe(serialized: bytes) -> bool:
    """Returns whether a SentencePiece model is BPE, as LLaMA's is."""
    try:
        return parsed(serialized).trainer_spec.model_type == _BPE
    except Exception as error:  # of protobuf
        raise ValueError("it is not a SentencePiece model; use the tokenizer.json") from error


def from_sentencepiece(serialized: bytes, legacy: bool) -> Tokenizer:
    """Returns the tokenizer of a SentencePiece model, as transformers converts LLaMA's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = parsed(serialized)
    spec = model.normalizer_spec
    if spec.precompiled_charsmap or spec.remove_extra_whitespaces or not spec.add_dummy_prefix:
        raise ValueError(
            "it is not like LLaMA's, which puts a space before each text and changes nothing else; "
            "use the model's tokenizer.json"
        )
    ids = {piece.piece: id for id, piece in enumerate(model.pieces)}
    unknown = model.pieces[model.trainer_spec.unk_id].piece
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(ids, {piece.piece: piece.score for piece in model.pieces}),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if legacy:
        steps = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            SPACE, prepend_scheme="first", split=False
        )
    replace, strip = decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [replace, decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
            for piece in model.pieces
            if piece.type in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer


def _merges(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns all pairs of pieces that join to a piece, in the order in which they are joined."""
    pairs = []
    for piece, score in scores.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(ids[a], ids[b], a, b) for a, b in halves if a in ids and b in ids]
        pairs += [(-score, -len(a), -len(b), a, b) for _, _, a, b in sorted(known)]
    pairs.sort(key=lambda pair: pair[:3])
    return [(a, b) for *_, a, b in pairs]


def _add_tokens(backend: Tokenizer, tokenization: Tokenization) -> None:
    """Adds the tokens of the checkpoint's other files, unless the tokenizer has them already."""
    from tokenizers import AddedToken

    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token in tokenization.added:
        if token.content not in known or known[token.content].special != token.special:
            flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word")}
            added = AddedToken(token.content, normalized=False, special=token.special, **flags)
            backend.add_tokens([added])
            known[token.content] = added
        if (id := backend.token_to_id(token.content)) != token.id:
            raise ValueError(
                f"the added token {token.content!r} has the id {token.id} in its files and would "
                f"get {id}; copy the tokenizer's files again"
            )
    assert tokenization.framing is not None
    for _, name in tokenization.framing.names:
        if name not in known and backend.token_to_id(name) is not None:
            backend.add_tokens([AddedToken(name, normalized=False, special=True)])
