"""Hugging Face's checkpoints of T5 v1.0, of v1.1 (LM-adapted, Flan-T5, mT5) and of ByT5.

A directory holds `config.json`, the arrays (safetensors, or PyTorch's pickles; in one file, or in
several with an index) and mostly the tokenizer, `spiece.model`.

How logits are made is said by the config and by the arrays together. transformers 4 writes
`tie_word_embeddings: false` for an output layer of its own (`lm_head.weight`), and scales tied
logits by 1/sqrt(d_model). transformers 5 writes true for every model, keeps an output layer that
differs from the embedding all the same, and says separately whether it scales. T5X has two of the
four kinds this makes, and the other two are read as untied models: the kernel is the transposed
embedding where logits are tied but not scaled, and has the scale multiplied in where they are
scaled but not tied.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from specdec.checkpoints import huggingface_config, huggingface_files, tree
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.huggingface_config import read_json, write_json
from specdec.models.t5 import T5Config
from specdec.types import PyTree

_SENTENCEPIECE, _TOKENIZER = "spiece.model", "tokenizer_config.json"
_EXTRA_IDS = {"t5": 100, "mt5": 0}  # where the tokenizer's config does not say
_BYTES_EXTRA_IDS = 125

_EMBEDDING, _LOGITS = "token_embedder/embedding", "decoder/logits_dense/kernel"
# One table under up to three names, and what is in some files without being used.
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_HEAD = "lm_head.weight"
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

# The parts of a layer in their order: the norm before it, its name, and theirs.
_PARTS = {
    "encoder": (
        ("pre_attention_layer_norm", "attention", "SelfAttention"),
        ("pre_mlp_layer_norm", "mlp", "DenseReluDense"),
    ),
    "decoder": (
        ("pre_self_attention_layer_norm", "self_attention", "SelfAttention"),
        ("pre_cross_attention_layer_norm", "encoder_decoder_attention", "EncDecAttention"),
        ("pre_mlp_layer_norm", "mlp", "DenseReluDense"),
    ),
}
_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
_MLP = {"wi": "wi", "wi_0": "wi_0", "wi_1": "wi_1", "wo": "wo"}


def is_checkpoint(directory: Path) -> bool:
    """Whether there are arrays beside a config of transformers, be it of a T5 or not."""
    file = directory / huggingface_config.NAME
    there = huggingface_files.are_in(directory) and file.is_file()
    return there and "model_type" in read_json(file)


def config(directory: Path) -> T5Config:
    """The model, from `config.json` and the arrays that are there.

    Raises CheckpointError for other models, those without a decoder or without an output layer
    that the config promises, and for what `huggingface_config.to_config` refuses.
    """
    return _model(directory, _record(directory), huggingface_files.read(directory))


def sources(directory: Path) -> dict[str, np.ndarray]:
    """The arrays under T5X's names, as views of memory maps: slicing them reads the data.

    Names that a T5 does not have stay as they are. Two things are read at once: an output layer
    whose scale has to be multiplied in, and PyTorch's files from before 2020.
    """
    record, arrays = _record(directory), huggingface_files.read(directory)
    model = _model(directory, record, arrays)
    embedding, head = _embedding(directory, arrays), arrays.get(_HEAD)
    names = {theirs: ours for ours, theirs in _names(model).items()}
    found = {_EMBEDDING: embedding}
    for theirs, array in arrays.items():
        if theirs not in (*_TABLES, _HEAD, _UNUSED):
            ours = names.get(theirs, theirs)
            found[ours] = _turned(ours, array)
    if not model.logits_via_embedding:
        kernel = _turned(_LOGITS, embedding if head is None else head)
        if huggingface_config.scales_logits(record):
            kernel = np.multiply(kernel, 1 / math.sqrt(model.emb_dim), dtype=np.float32)
        found[_LOGITS] = kernel
    return found


def vocabulary(directory: Path) -> tuple[Path | None, int] | None:
    """The SentencePiece model (None for ByT5's bytes) and its extra ids; None without a tokenizer.

    Raises CheckpointError for a `tokenizer.json` alone, which is all that transformers 5 saves.
    """
    record, file = _record(directory), directory / _TOKENIZER
    text = file.read_text() if file.is_file() else ""
    if text:
        record |= read_json(file)
    # Which list of the file has the sentinels depends on the version that saved it.
    sentinels = len(set(re.findall(r"<extra_id_\d+>", text)))
    if str(record.get("tokenizer_class")).startswith("ByT5Tokenizer"):
        return None, sentinels or _BYTES_EXTRA_IDS
    if (directory / _SENTENCEPIECE).is_file():
        default = _EXTRA_IDS.get(record["model_type"], 0)
        return directory / _SENTENCEPIECE, sentinels or record.get("extra_ids", default)
    if (directory / "tokenizer.json").is_file():
        raise CheckpointError(
            f"{directory} has its tokenizer as tokenizer.json alone, which is not read; add the "
            f"{_SENTENCEPIECE} of the model it comes from, or name a vocabulary"
        )
    return None


def write(folder: Path, params: PyTree, config: T5Config, vocabulary: Path | None) -> None:
    """Writes a checkpoint that transformers reads, one array after the other, each in its dtype.

    A SentencePiece vocabulary becomes `spiece.model`, with T5's 100 extra ids where the model has
    room for them behind the pieces.
    """
    record, names = huggingface_config.to_record(config), _names(config)
    leaves = {names[ours]: (ours, leaf) for ours, leaf in tree.flatten(params).items()}
    specs = {theirs: _spec(*leaf) for theirs, leaf in leaves.items()}
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary is not None:
        _write_tokenizer(folder, vocabulary, config)
    huggingface_files.write(folder, specs, lambda theirs: np.asarray(_turned(*leaves[theirs])))
    record["dtype"] = specs[_TABLES[0]].dtype.name
    write_json(folder / huggingface_config.NAME, record)


def _record(directory: Path) -> dict[str, Any]:
    return read_json(directory / huggingface_config.NAME)


def _model(
    directory: Path, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> T5Config:
    file = directory / huggingface_config.NAME
    model = huggingface_config.to_config(record, file)
    if not any(name.startswith("decoder.block.") for name in arrays):
        what = ", ".join(record.get("architectures") or ["a model"])
        raise CheckpointError(
            f"{directory} is {what} and has no decoder; give a T5ForConditionalGeneration"
        )
    head = arrays.get(_HEAD)
    if head is None and record.get("tie_word_embeddings") is False:
        raise CheckpointError(
            f"{file} says that the logits are not tied to the embedding (tie_word_embeddings is "
            f"false), but there is no {_HEAD}; save the model as T5ForConditionalGeneration"
        )
    if model.logits_via_embedding and head is not None:
        tied = _same(head, _embedding(directory, arrays))
        model = dataclasses.replace(model, logits_via_embedding=tied)
    return model


def _embedding(directory: Path, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    tables = [name for name in _TABLES if name in arrays]
    if not tables:
        raise CheckpointError(f"{directory} has no {_TABLES[0]}; copy it again")
    first, *others = tables
    for name in others:
        if not _same(arrays[first], arrays[name]):
            raise CheckpointError(
                f"{first} and {name} in {directory} differ, and T5 has one table of embeddings; "
                "use another checkpoint"
            )
    return arrays[first]


def _same(a: np.ndarray, b: np.ndarray, rows: int = 1024) -> bool:
    """Whether two matrices are equal; those that are not mostly differ in the first rows read."""
    return a.shape == b.shape and all(
        np.array_equal(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)
    )


def _names(config: T5Config) -> dict[str, str]:
    """{T5X's name: theirs} of all arrays a model of this depth may have."""
    names = {_EMBEDDING: _TABLES[0], _LOGITS: _HEAD}
    depths = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for stack, depth in depths.items():
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names[f"{stack}/relpos_bias/rel_embedding"] = bias
        names[f"{stack}/{stack}_norm/scale"] = f"{stack}.final_layer_norm.weight"
        for i in range(depth):
            for j, (norm, part, theirs) in enumerate(_PARTS[stack]):
                layer, sublayer = f"{stack}/layers_{i}", f"{stack}.block.{i}.layer.{j}"
                names[f"{layer}/{norm}/scale"] = f"{sublayer}.layer_norm.weight"
                for ours, weight in (_MLP if part == "mlp" else _ATTENTION).items():
                    names[f"{layer}/{part}/{ours}/kernel"] = f"{sublayer}.{theirs}.{weight}.weight"
    return names


def _turned(name: str, array: Any) -> Any:
    """An array as the other side keeps it (theirs are [out, in]); `name` is T5X's."""
    return array if name == _EMBEDDING else array.T


def _spec(name: str, array: Any) -> jax.ShapeDtypeStruct:
    """What `_turned` makes of an array."""
    shape = array.shape if name == _EMBEDDING else array.shape[::-1]
    return jax.ShapeDtypeStruct(shape, array.dtype)


def _write_tokenizer(folder: Path, vocabulary: Path, config: T5Config) -> None:
    from sentencepiece import SentencePieceProcessor

    try:
        pieces = SentencePieceProcessor(model_file=str(vocabulary)).get_piece_size()
    except RuntimeError as error:
        raise CheckpointError(
            f"vocabulary {vocabulary} is not a SentencePiece model; give a .model file"
        ) from error
    room = config.vocab_size - pieces >= _EXTRA_IDS["t5"]
    shutil.copyfile(vocabulary, folder / _SENTENCEPIECE)
    extra_ids = _EXTRA_IDS["t5"] if room else 0
    record = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
    write_json(folder / _TOKENIZER, record)
