"""Hugging Face's T5 v1.0, v1.1 (LM-adapted, Flan-T5, mT5, umT5) and ByT5, in T5X's names.

Config and arrays together determine the logits. transformers 4 writes `tie_word_embeddings: false`
if there is an output layer (`lm_head.weight`), and scales tied logits by 1/sqrt(d_model).
transformers 5 writes true for every model, still stores an output layer that differs from the
embedding, and records separately whether it scales. T5X has two of these four kinds. The other two
are read as untied models. If logits are tied but not scaled, the kernel is the transposed
embedding. If they are scaled but not tied, the scale is multiplied into the kernel.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from specdec.models.contract.family import Arrays, Record
from specdec.models.t5 import huggingface_names
from specdec.models.t5.config import T5Config
from specdec.models.t5.huggingface_config import from_record, scales_logits
from specdec.models.t5.huggingface_config import to_record as to_record  # of the family's part

MODEL_TYPES: tuple[str, ...] = ("t5", "mt5", "umt5")  # ByT5's is t5

_EXTRA_IDS = {"t5": 100, "mt5": 0, "umt5": 0}  # where the tokenizer's record does not say
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


def to_config(record: Record, arrays: Arrays) -> T5Config:
    """Returns the model that the record and the arrays describe."""
    huggingface_names.check(arrays.keys(), record)
    config, head = from_record(record), arrays.get(_HEAD)
    if head is None and record.get("tie_word_embeddings") is False:
        raise ValueError(
            "the logits are not tied to the embedding (tie_word_embeddings is false), but there "
            f"is no {_HEAD}; save the model as T5ForConditionalGeneration"
        )
    if config.logits_via_embedding and head is not None:
        return dataclasses.replace(config, logits_via_embedding=_same(head, _embedding(arrays)))
    return config


def parameters(record: Record, config: T5Config, arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns the arrays under T5X's names, as views; arrays that a T5 lacks keep their names.

    Only an output layer into which a scale must be multiplied is read.
    """
    ours = {hf_name: name for name, hf_name in names(config).items()}
    by_name = {_EMBEDDING: _embedding(arrays)}
    for hf_name, array in arrays.items():
        if hf_name not in (*_TABLES, _HEAD, _UNUSED):
            by_name[ours.get(hf_name, hf_name)] = array.T
    if not config.logits_via_embedding:
        by_name[_LOGITS] = _logits(record, config, arrays.get(_HEAD, by_name[_EMBEDDING]).T)
    return by_name


def names(config: T5Config) -> dict[str, str]:
    """Returns {T5X's name: theirs} of all arrays that a model of this config may have."""
    hf_names = {_EMBEDDING: _TABLES[0], _LOGITS: _HEAD}
    depths = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    for stack, depth in depths.items():
        per_layer = config.relative_bias_per_layer
        for layer in range(depth if per_layer else 1):
            bias = f"{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
            layers = f"{stack}/layers_{layer}" if per_layer else stack
            hf_names[f"{layers}/relpos_bias/rel_embedding"] = bias
        hf_names[f"{stack}/{stack}_norm/scale"] = f"{stack}.final_layer_norm.weight"
        for layer in range(depth):
            hf_names |= _names_of_layer(stack, layer)
    return hf_names


def is_transposed(name: str) -> bool:
    """Returns whether theirs is [out, in] where T5X's is [in, out]."""
    return name != _EMBEDDING


def has_bytes(record: Record) -> bool:
    """Returns whether the tokenizer is ByT5's."""
    return str(record.get("tokenizer_class")).startswith("ByT5Tokenizer")


def extra_ids(record: Record, tokenizer: str) -> int:
    """Returns the number of the vocabulary's sentinels.

    The version that saved the tokenizer determines which list of its record has them.
    """
    if sentinels := len(set(re.findall(r"<extra_id_\d+>", tokenizer))):
        return sentinels
    if has_bytes(record):
        return record.get("extra_ids", _BYTES_EXTRA_IDS)
    return record.get("extra_ids", _EXTRA_IDS.get(record["model_type"], 0))


def tokenizer_record(config: T5Config, pieces: int) -> dict[str, object]:
    """Returns the record of T5's tokenizer, with its 100 extra ids if there is room for them."""
    room = config.vocab_size - pieces >= _EXTRA_IDS["t5"]
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": _EXTRA_IDS["t5"] if room else 0}


def _embedding(arrays: Arrays) -> np.ndarray:
    tables = [name for name in _TABLES if name in arrays]
    if not tables:
        raise ValueError(f"there is no {_TABLES[0]}; copy it again")
    first, *others = tables
    for name in others:
        if not _same(arrays[first], arrays[name]):
            raise ValueError(
                f"{first} and {name} differ, and T5 has one table of embeddings; use another "
                "checkpoint"
            )
    return arrays[first]


def _logits(record: Record, config: T5Config, kernel: np.ndarray) -> np.ndarray:
    if not scales_logits(record):
        return kernel
    return np.multiply(kernel, 1 / math.sqrt(config.emb_dim), dtype=np.float32)


def _same(a: np.ndarray, b: np.ndarray, rows: int = 1024) -> bool:
    """Returns whether two matrices are equal. Unequal ones mostly differ in the first rows read."""
    return a.shape == b.shape and all(
        np.array_equal(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)
    )


def _names_of_layer(stack: str, layer: int) -> dict[str, str]:
    hf_names, ours = {}, f"{stack}/layers_{layer}"
    for i, (norm, part, hf_part) in enumerate(_PARTS[stack]):
        sublayer = f"{stack}.block.{layer}.layer.{i}"
        hf_names[f"{ours}/{norm}/scale"] = f"{sublayer}.layer_norm.weight"
        for name, weight in (_MLP if part == "mlp" else _ATTENTION).items():
            hf_names[f"{ours}/{part}/{name}/kernel"] = f"{sublayer}.{hf_part}.{weight}.weight"
    return hf_names
