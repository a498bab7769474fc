"""Hugging Face's directories, for families of models that transformers has too.

A directory holds `config.json`, the arrays, and usually the tokenizer. Arrays are safetensors or
PyTorch's pickles, in one file or in several with an index. The tokenizer is `spiece.model`, or else
`tokenizer.json`, which is all that transformers 5 saves. Decoder-only models may have instead
`tokenizer.model`, or `vocab.json` and `merges.txt`. Each family translates the names in these files
to ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from specdec import tasks
from specdec.checkpoints import generation, huggingface_files, safetensors, tokenizer_files, tree
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError, about
from specdec.checkpoints.huggingface_files import CONFIG, read_json, write_json
from specdec.models import families
from specdec.models.contract.family import Config, HuggingFace, Record
from specdec.tasks import pieces
from specdec.types import Array, PyTree

_SENTENCEPIECE, _TOKENIZER_JSON = "spiece.model", "tokenizer.json"
_TOKENIZER = tokenizer_files.CONFIG  # next to either of these two


def is_checkpoint(directory: Path) -> bool:
    """Returns whether a directory has arrays and a `config.json` of transformers, of any family."""
    file = directory / CONFIG
    there = huggingface_files.are_in(directory) and file.is_file()
    return there and "model_type" in read_json(file)


def wanted(names: Collection[str]) -> list[str]:
    """Returns which files of a remote directory to download; [] if `names` make no checkpoint."""
    arrays = huggingface_files.wanted(names)
    files = tokenizer_files.VOCABULARIES
    tokenizer = next((some for some in files if set(some) <= set(names)), ())
    settings = (*tokenizer_files.NAMES, tokenizer_files.CHAT, *tokenizer_files.PICTURES)
    settings += (tokenizer_files.WORD_PIECE,)
    text = (*tokenizer, *settings, generation.FILE)
    others = [name for name in (CONFIG, *text) if name in names]
    return [*others, *arrays] if arrays and CONFIG in others else []


def is_whole(directory: Path) -> bool:
    """Returns whether a directory is a checkpoint of which all files of arrays are there."""
    try:
        return is_checkpoint(directory) and bool(huggingface_files.parts(directory))
    except CheckpointError:
        return False


def config(directory: Path) -> Config:
    """Returns the model's config, from `config.json` and the arrays."""
    return _read(directory)[2]


def _read(directory: Path) -> tuple[HuggingFace, Record, Config, Mapping[str, np.ndarray]]:
    """Returns the adapter of the model, its record, its config and its arrays."""
    record = _record(directory)
    adapter, arrays = _adapter(directory, record), huggingface_files.read(directory)
    with about(directory):
        config = adapter.to_config(record, arrays)
    tree.check_sizes(config, (x.shape for x in arrays.values()), f"checkpoint {directory}")
    return adapter, record, config, arrays


def _record(directory: Path) -> Record:
    """Returns the fields of `config.json`, with the special ids of the generation settings."""
    settings = generation.read(directory)
    ids = {name: settings[name].value for name in generation.IDS if name in settings}
    if (start := generation.start_of(settings)) is not None:
        ids[generation.START] = start
    return read_json(directory / CONFIG) | ids


def sources(directory: Path) -> dict[str, np.ndarray]:
    """Returns the arrays under our names, as views of memory maps: slicing them reads the data.

    Arrays that the model lacks keep transformers' names. Two kinds are read immediately: PyTorch's
    files from before 2020, and arrays that the family cannot return as views.
    """
    adapter, record, config, arrays = _read(directory)
    with about(directory):
        return adapter.parameters(record, config, arrays)


def vocabulary(directory: Path) -> tuple[Path | None, int] | None:
    """Returns the vocabulary's file and its number of sentinels; None without a tokenizer.

    The file is the first of `tokenizer_files.VOCABULARIES` that exists, or None for bytes.
    """
    record, file = read_json(directory / CONFIG), directory / _TOKENIZER
    adapter = _adapter(directory, record)
    if tasks.SERIES_KEY in record:
        return directory / CONFIG, 0
    text = ""
    if file.is_file():
        record |= read_json(file)
        text = file.read_text(encoding="utf-8")
    if adapter.has_bytes(record):
        return None, adapter.extra_ids(record, text)
    if (directory / _SENTENCEPIECE).is_file():
        return directory / _SENTENCEPIECE, adapter.extra_ids(record, text)
    if (file := directory / _TOKENIZER_JSON).is_file():
        with about(file):
            return file, pieces.sentinels(file.read_text(encoding="utf-8"))
    if (file := directory / tokenizer_files.LLAMA).is_file():
        return file, 0
    both = [directory / name for name in (pieces.VOCAB, pieces.MERGES)]
    there = [file for file in both if file.is_file()]
    if there and there != both:
        raise CheckpointError(
            f"{directory} has {there[0].name} without the other of {pieces.VOCAB} and "
            f"{pieces.MERGES}; copy both"
        )
    if not there and (file := directory / tokenizer_files.WORD_PIECE).is_file():
        raise CheckpointError(
            f"{file} is a vocabulary of WordPiece, as of a BertTokenizer, which is not read; name "
            "another with --vocabulary=FILE"
        )
    return (there[0], 0) if there else None


def has_vocabulary(directory: Path) -> bool:
    """Returns whether a directory has a tokenizer, readable or not."""
    try:
        return vocabulary(directory) is not None
    except CheckpointError:
        return True


def write(folder: Path, params: PyTree, config: Config, vocabulary: Location | None) -> None:
    """Writes a checkpoint that transformers reads, one array after the other, each in its dtype.

    A T5's SentencePiece vocabulary becomes `spiece.model`; other files keep their names.
    """
    family = families.family_of(config)
    if (adapter := family.huggingface) is None:
        raise CheckpointError(
            f"transformers has no models of the family {family.name!r}; choose another format"
        )
    with about("format huggingface"):
        record = adapter.to_record(config)
    names = adapter.names(config)
    flat, parts = tree.flatten(params), {}
    for name, array in names.items():
        if name in flat:
            parts.setdefault(array, []).append(name)
    specs = {names[ours]: _spec(adapter, parts[names[ours]], flat) for ours in flat}
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary is not None and tasks.is_series(vocabulary):
        record[tasks.SERIES_KEY] = tasks.series_record(vocabulary.read_bytes())
    elif vocabulary is not None:
        _write_tokenizer(folder, vocabulary, adapter, config)
    huggingface_files.write(folder, specs, lambda array: _joined(adapter, parts[array], flat))
    largest = max(specs.values(), key=safetensors.size)
    write_json(folder / CONFIG, record | {"dtype": largest.dtype.name})


def _adapter(directory: Path, record: Record) -> HuggingFace:
    """Returns the adapter of the model family that the `model_type` of a `config.json` names."""
    adapters = (family.huggingface for family in families.FAMILIES.values())
    known = {kind: adapter for adapter in adapters if adapter for kind in adapter.MODEL_TYPES}
    kind = record.get("model_type")
    if kind not in known:
        raise CheckpointError(
            f"{directory / CONFIG} is of a {kind!r} model; those that can be read: "
            f"{', '.join(known)}"
        )
    return known[kind]


def _joined(adapter: HuggingFace, names: Sequence[str], flat: Mapping[str, Array]) -> np.ndarray:
    """Returns transformers' array of our parameters `names`, transposed and joined as needed."""
    turned = [flat[name].T if adapter.is_transposed(name) else flat[name] for name in names]
    return np.asarray(turned[0] if len(turned) == 1 else np.concatenate(turned, axis=-1))


def _spec(
    adapter: HuggingFace, names: Sequence[str], flat: Mapping[str, Array]
) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of the array that `_joined` returns."""
    first = flat[names[0]]
    shape = first.shape[::-1] if adapter.is_transposed(names[0]) else first.shape
    return jax.ShapeDtypeStruct((*shape[:-1], len(names) * shape[-1]), first.dtype)


def _write_tokenizer(
    folder: Path, vocabulary: Location, adapter: HuggingFace, config: Config
) -> None:
    if tokenizer_files.is_framed(vocabulary):
        (folder / vocabulary.name).write_bytes(vocabulary.read_bytes())
        return  # `text_model.keep` copies the other files
    if vocabulary.name.endswith(".json"):
        name, text = _TOKENIZER_JSON, vocabulary.read_text(encoding="utf-8")
        with about(f"vocabulary {vocabulary}"):
            record = {"extra_ids": pieces.sentinels(text)}
        record = adapter.tokenizer_record(config, len(pieces.of_tokenizer(text))) | record
    else:
        name, count = _SENTENCEPIECE, tokenizer_files.sentencepiece(vocabulary).get_piece_size()
        record = adapter.tokenizer_record(config, count)
    (folder / name).write_bytes(vocabulary.read_bytes())
    write_json(folder / _TOKENIZER, record)
