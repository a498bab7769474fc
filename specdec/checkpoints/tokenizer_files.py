"""The files of a tokenizer besides its SentencePiece model or `tokenizer.json`.

They hold added tokens, and settings of encoding and decoding. For byte-pair merges they also define
BOS, EOS and the chat template. They are read as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.checkpoints import generation
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError, about
from specdec.checkpoints.huggingface_files import CONFIG as MODEL
from specdec.checkpoints.huggingface_files import read_json, write_json
from specdec.common.json_values import JsonObject
from specdec.tasks import pieces
from specdec.tasks.added_tokens import AddedToken, Framing, Tokenization
from specdec.tasks.bpe import is_bpe

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

CONFIG, _SPECIAL, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
CHAT = "chat_template.jinja"
PICTURES = ("preprocessor_config.json", "processor_config.json")  # kept with a tokenizer
NAMES = (CONFIG, _SPECIAL, _ADDED)
_JSON, LLAMA = "tokenizer.json", "tokenizer.model"
WORD_PIECE = "vocab.txt"  # is not read
# Files that have the pieces, in the order in which they are looked for.
VOCABULARIES = (("spiece.model",), (_JSON,), (LLAMA,), (pieces.VOCAB, pieces.MERGES))
_ALL = (*NAMES, CHAT, *PICTURES, *(name for names in VOCABULARIES[1:] for name in names))

_ROLES = ("pad_token", "eos_token", "unk_token")
_NAMES = ("<pad>", "</s>", "<unk>")
_CLASSES = (
    "T5Tokenizer",
    "MT5Tokenizer",
    "ByT5Tokenizer",
    "PreTrainedTokenizer",
    "TokenizersBackend",
)
# The classes that read byte-pair merges as is done here; "" for any class.
_BPE_CLASSES = {
    LLAMA: ("LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
    pieces.VOCAB: ("GPT2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
    _JSON: ("",),
}
_ADDS_BOS = {LLAMA: True, pieces.VOCAB: False, _JSON: None}  # if tokenizer_config.json does not say
# The usual names of special tokens, of tokenizers that say none: LLaMA's, and GPT-2's.
_USUAL = (
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
)
_BYTES = 259  # ids of ByT5 before its sentinels
# Settings that change ids or texts and are not supported, with the values that have no effect.
_REFUSED = {
    "do_lower_case": (False,),
    "split_special_tokens": (False,),
    "sp_model_kwargs": ({},),
    "remove_space": (True,),
    "keep_accents": (True,),
}


def present(directory: Location, file: Location | None) -> tuple[Location, ...]:
    """Returns the files of a directory's tokenizer other than the vocabulary `file`."""
    names = NAMES if file is None else [name for name in _ALL if name != file.name]
    return tuple(directory / name for name in names if (directory / name).is_file())


def is_framed(file: Location | None) -> bool:
    """Returns whether a vocabulary has byte-pair merges, so that other files define BOS and EOS."""
    if file is None or not file.name.endswith((".json", LLAMA)):
        return False
    with about(file):
        if file.name == LLAMA:
            return is_bpe(file.read_bytes())
        return file.name == pieces.VOCAB or pieces.is_bpe(file.read_bytes().decode("utf-8"))


def read(directory: Location, file: Location | None, extra_ids: int) -> Tokenization:
    """Returns the settings and added tokens in the files next to a vocabulary `file`."""
    config, special, added = (
        read_json(directory / name) if (directory / name).is_file() else {} for name in NAMES
    )
    for key, neutral in _REFUSED.items():
        if (value := config.get(key)) is not None and value not in neutral:
            raise CheckpointError(
                f"{directory / CONFIG} has {key} {value!r}, which is not supported; set it to "
                f"{neutral[0]!r} if the model does not need it"
            )
    if file is not None and is_framed(file):
        return _framed(directory, file, config, special, added)
    count, names, roles = _ids_of(file)
    for name, (key, value) in _stated(config, special).items():
        if value != roles.get(key, value):
            raise CheckpointError(
                f"{directory}: {name} {value!r}, and that of the vocabulary is {roles[key]!r}; use "
                "a tokenizer with its vocabulary's special tokens"
            )
    clean_up = config.get("clean_up_tokenization_spaces") is True
    if file is not None and file.name.endswith(".json"):
        _check_tokens(directory, (), added)
        return Tokenization(clean_up=clean_up)  # it has its own added tokens
    _check_class(directory, config.get("tokenizer_class"), _CLASSES)
    by_id = _sentinels(count, extra_ids, file) | _added(directory, config, special, added)
    tokens = [token for token in by_id.values() if token.id >= 3 or token.content not in names]
    _check_tokens(directory, tokens, added)
    legacy = config.get("legacy") is not False
    return Tokenization(tuple(sorted(tokens, key=lambda token: token.id)), legacy, clean_up)


def _framed(
    directory: Location,
    file: Location,
    config: JsonObject,
    special: JsonObject,
    added: Mapping[str, int],
) -> Tokenization:
    """Returns the settings of a tokenizer with byte-pair merges."""
    kind = file.name if file.name in _BPE_CLASSES else _JSON
    _check_class(directory, config.get("tokenizer_class"), _BPE_CLASSES[kind])
    tokens = _added(directory, config, special, added)
    _check_tokens(directory, tokens.values(), added)
    template, template_file = _chat_template(directory, config)
    framing = Framing(
        names=tuple(_special_names(directory, file, config, special).items()),
        continued=_is_continued(directory / MODEL),
        add_bos=_or(config.get("add_bos_token"), _ADDS_BOS[kind]),
        add_eos=_or(config.get("add_eos_token"), None if kind == _JSON else False),
        prefix_space=config.get("add_prefix_space"),
        chat_template=template,
        chat_file=str(template_file),
    )
    legacy = config.get("legacy") is not False
    ordered = tuple(sorted(tokens.values(), key=lambda token: token.id))
    return Tokenization(ordered, legacy, framing=framing)


def _is_continued(record: Location) -> bool:
    """Returns whether the model of a `config.json`, if there is one, is decoder-only."""
    return not record.is_file() or generation.continues_prompts(read_json(record))


def _special_names(
    directory: Location, file: Location, config: JsonObject, special: JsonObject
) -> dict[str, str]:
    """Returns the special tokens by transformers' names, such as "eos_token"."""
    stated: dict[str, str] = {}
    for name, record in ((CONFIG, config), (_SPECIAL, special)):
        for role, value in record.items():
            content = value.get("content") if isinstance(value, dict) else value
            if not role.endswith("_token") or not isinstance(content, str):
                continue
            if stated.setdefault(role, content) != content:
                raise CheckpointError(
                    f"{directory} contradicts itself: {role} is {stated[role]!r} in {CONFIG} and "
                    f"{content!r} in {name}; correct one of them"
                )
    if file.name == LLAMA:
        processor = sentencepiece(file)
        ids = {"bos_token": processor.bos_id(), "eos_token": processor.eos_id()}
        ids["unk_token"] = processor.unk_id()
        usual = {role: processor.id_to_piece(id) for role, id in ids.items() if id >= 0}
    else:
        with about(file):
            text = file.read_bytes().decode("utf-8")
            of_vocab = file.name == pieces.VOCAB
            names_in = pieces.of_vocab if of_vocab else pieces.names_of_tokenizer
            known = set(names_in(text))
        fitting = [names for names in _USUAL if names["eos_token"] in known]
        usual = fitting[0] if len(fitting) == 1 else {}  # otherwise the files must name them
    return usual | stated


def _or(stated: bool | None, usual: bool | None) -> bool | None:
    return usual if stated is None else stated


def _chat_template(directory: Location, config: JsonObject) -> tuple[str | None, Location]:
    """Returns the default chat template, None if there is none, and its file."""
    if (file := directory / CHAT).is_file():
        with about(file):
            return file.read_text(encoding="utf-8"), file
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {
            named.get("name"): named.get("template")
            for named in template
            if isinstance(named, dict)
        }
        template = by_name.get("default")
    return template if isinstance(template, str) else None, directory / CONFIG


def _added(
    directory: Location,
    config: JsonObject,
    special: JsonObject,
    added: Mapping[str, int],
) -> dict[int, AddedToken]:
    """Returns the added tokens that the files name, by id."""
    try:
        return _decoder(config) if "added_tokens_decoder" in config else _encoder(added, special)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{directory} has added tokens that cannot be read ({error!r}); copy "
            f"{' and '.join(NAMES)} again"
        ) from error


def sentencepiece(file: Location) -> SentencePieceProcessor:
    """Returns the `SentencePieceProcessor` of a file."""
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_proto=file.read_bytes())
    except RuntimeError as error:
        raise CheckpointError(
            f"vocabulary {file} is not a SentencePiece model; give a .model file"
        ) from error
    return processor


def _ids_of(file: Location | None) -> tuple[int, list[str], dict[str, str]]:
    """Returns three facts of a vocabulary without added tokens.

    They are the number of ids, the pieces of ids 0 to 2, and the pieces by role ("eos_token").
    """
    if file is None:
        return _BYTES, list(_NAMES), dict(zip(_ROLES, _NAMES, strict=True))
    if file.name.endswith(".json"):
        with about(file):
            names = pieces.names_of_tokenizer(file.read_bytes().decode("utf-8"))
        roles = _ROLES if names[:1] == [_NAMES[0]] else ()  # T5's, or not known
        return len(names), names[:3], dict(zip(roles, names, strict=False))
    processor = sentencepiece(file)
    with about(f"vocabulary {file}"):
        ids = zip(_ROLES, pieces.special_ids(processor), strict=True)
    roles = {role: processor.id_to_piece(id) for role, id in ids if id is not None}
    return processor.get_piece_size(), [processor.id_to_piece(id) for id in range(3)], roles


def _stated(config: JsonObject, special: JsonObject) -> dict[str, tuple[str, str]]:
    """Returns {"FILE has ROLE": (role, token)} for the padding, EOS and unknown tokens."""
    stated = {}
    for name, record in ((CONFIG, config), (_SPECIAL, special)):
        for role in _ROLES:
            value = record.get(role)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                stated[f"{name} has {role}"] = (role, content)
    return stated


def _check_class(directory: Location, name: object, known: tuple[str, ...]) -> None:
    """Rejects tokenizers that have the same files but treat texts differently."""
    if name is not None and not str(name).startswith(known):
        raise CheckpointError(
            f"{directory / CONFIG} has tokenizer_class {name!r}, and those read are "
            f"{', '.join(known)}; save the tokenizer as one of these"
        )


def _sentinels(count: int, extra_ids: int, file: Location | None) -> dict[int, AddedToken]:
    """Returns the sentinels, by id, that transformers 4 adds after the `count` ids of a model.

    <extra_id_0> has the last id and takes the white space around it; in ByT5 it has the first id.
    """
    tokens = {}
    for number in range(extra_ids):
        id = count + (number if file is None else extra_ids - 1 - number)
        strip = file is not None
        name = f"<extra_id_{number}>"
        tokens[id] = AddedToken(id, name, lstrip=strip, rstrip=strip, special=True)
    return tokens


def _decoder(config: JsonObject) -> dict[int, AddedToken]:
    """Returns the added tokens of `tokenizer_config.json`, by id."""
    tokens = {}
    for id, fields in config["added_tokens_decoder"].items():
        flags = ("lstrip", "rstrip", "single_word", "special")
        options = {name: bool(fields.get(name, False)) for name in flags}
        if not (id.isascii() and id.isdigit()):  # int() reads more than this
            raise ValueError(f"the id {id!r}")
        tokens[int(id)] = AddedToken(int(id), fields["content"], **options)
    return tokens


def _encoder(added: Mapping[str, int], special: JsonObject) -> dict[int, AddedToken]:
    """Returns the added tokens of `added_tokens.json` by id, as saved before transformers 4.34."""
    listed = special.get("additional_special_tokens") or []
    names = {token["content"] if isinstance(token, dict) else token for token in listed}
    return {id: AddedToken(id, content, special=content in names) for content, id in added.items()}


def _check_tokens(
    directory: Location, tokens: Iterable[AddedToken], added: Mapping[str, int]
) -> None:
    """Raises CheckpointError for an added token with two ids, in one file or in two."""
    ids: dict[str, int] = {}
    stated = [*((token.content, token.id) for token in tokens), *added.items()]
    if (directory / _JSON).is_file():
        with about(directory / _JSON):
            text = (directory / _JSON).read_bytes().decode("utf-8")
            stated += pieces.added_to_tokenizer(text).items()
    for content, id in stated:
        if ids.setdefault(content, id) != id:
            raise CheckpointError(
                f"{directory} contradicts itself: the added token {content!r} has the ids "
                f"{ids[content]} and {id} in its files; correct one of them"
            )


def write_bytes_tokenizer(folder: Path, extra_ids: int) -> None:
    """Writes tokenizer_config.json for transformers' ByT5 tokenizer, which has no vocabulary."""
    record = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": extra_ids}
    if not extra_ids:
        record["additional_special_tokens"] = []  # otherwise it adds 125
    write_json(folder / CONFIG, record)
