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
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from specdec.models.bases.family_checkpoints import (
    HEAD,
    TABLE,
    FamilyCheckpoints,
    attention_parts,
    fields_of_record,
    refuse_quantised,
)
from specdec.models.contract.family import Arrays, Record
from specdec.models.t5.config import EOS_ID, PAD_ID, T5Config

_EXTRA_IDS = {"t5": 100, "mt5": 0, "umt5": 0}  # where the tokenizer's record does not say
_BYTES_EXTRA_IDS = 125
# One table under up to three names.
_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_PRODUCTS = "q k v o"
_BIAS = "SelfAttention.relative_attention_bias"
_START, _PAD, _ENDS = "decoder_start_token_id", "pad_token_id", "eos_token_id"
# Theirs: ours. Our gelu is the tanh approximation, as in T5X and Flax; their 'gelu' is exact.
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu"}
_WRITTEN = {"relu": "relu", "gelu": "gelu_new", "silu": "silu"}
_GATED = "gated-"
# Wrappers put a prefix before every name, and adapters change the names of some kernels.
_PART_NAMES = ("shared.", "encoder.", "decoder.", "lm_head.")
_ANCHORS = ("shared.weight", "encoder.block.0.", "decoder.block.0.")
_NEEDED = {"decoder": "decoder.block.", "output layer": "lm_head.weight"}
_ADAPTERS = (".base_layer.", ".lora_A", ".lora_B", ".lora_embedding_", ".ia3_")
# The first part of a prefix: what puts it there, and how the model itself is saved.
_WRAPPERS = {
    "module": ("DistributedDataParallel", "model.module.save_pretrained(DIR)"),
    "_orig_mod": ("torch.compile", "model._orig_mod.save_pretrained(DIR)"),
    "base_model": ("PEFT", "model.merge_and_unload().save_pretrained(DIR)"),
    "_fsdp_wrapped_module": ("FSDP", "the full state_dict of the wrapped model"),
}
_MERGE = "merge the adapter first, model.merge_and_unload().save_pretrained(DIR)"


class T5Checkpoints(FamilyCheckpoints):
    """T5's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("t5", "mt5", "umt5")  # ByT5's is t5
    architecture = "T5ForConditionalGeneration"
    written = "transformers' T5"
    prefix = ""
    anchor = _TABLES[0]
    layers = "{stack}.block"
    unused = re.compile(
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    )
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "emb_dim": "d_model",
        "num_heads": "num_heads",
        "head_dim": "d_kv",
        "mlp_dim": "d_ff",
        "num_encoder_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "relative_attention_num_buckets": "relative_attention_num_buckets",
        "relative_attention_max_distance": "relative_attention_max_distance",
        "layer_norm_epsilon": "layer_norm_epsilon",
    }
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "layer.0.layer_norm",
        **attention_parts("self_attention", "layer.0.SelfAttention", _PRODUCTS),
        "pre_cross_attention_layer_norm/scale": "layer.1.layer_norm",
        **attention_parts("encoder_decoder_attention", "layer.1.EncDecAttention", _PRODUCTS),
        "pre_mlp_layer_norm/scale": "layer.2.layer_norm",
        "mlp/wi/kernel": "layer.2.DenseReluDense.wi",
        "mlp/wi_0/kernel": "layer.2.DenseReluDense.wi_0",
        "mlp/wi_1/kernel": "layer.2.DenseReluDense.wi_1",
        "mlp/wo/kernel": "layer.2.DenseReluDense.wo",
    }
    others: ClassVar[Mapping[str, str]] = {
        "encoder/encoder_norm/scale": "encoder.final_layer_norm",
        "decoder/decoder_norm/scale": "decoder.final_layer_norm",
    }

    def described(self, record: Record) -> T5Config:
        """Returns the config that a record describes, with logits tied if they are scaled."""
        if record.get("is_encoder_decoder") is False:
            raise ValueError(
                "this is of an encoder alone (is_encoder_decoder is false); give a "
                f"{self.architecture}"
            )
        refuse_quantised(record)
        fields = fields_of_record(record, self.fields, required=6) | _ids(record)
        fields.setdefault("num_decoder_layers", record["num_layers"])
        fields["mlp_activations"] = _activations(record)
        fields["relative_bias_per_layer"] = record["model_type"] == "umt5"
        try:
            return T5Config(**fields, logits_via_embedding=scales_logits(record))
        except (TypeError, ValueError) as error:
            raise ValueError(f"this does not describe a T5 ({error}); copy it again") from error

    def to_config(self, record: Record, arrays: Arrays) -> T5Config:
        """Returns the config of the model that a record and its arrays describe."""
        _check_names(arrays.keys(), record)
        config, head = self.described(record), arrays.get(self.head)
        if head is None and record.get("tie_word_embeddings") is False:
            raise ValueError(
                "the logits are not tied to the embedding (tie_word_embeddings is false), but "
                f"there is no {self.head}; save the model as {self.architecture}"
            )
        if config.logits_via_embedding and head is not None:
            return dataclasses.replace(config, logits_via_embedding=_same(head, _embedding(arrays)))
        return config

    def to_record(self, config: T5Config) -> dict[str, object]:
        """Returns the contents of transformers' `config.json` for a model."""
        record = super().to_record(config)
        activation, *gate = config.mlp_activations
        if activation not in _WRITTEN or gate not in ([], ["linear"]):
            raise ValueError(
                f"{self.written} has no MLP with mlp_activations={config.mlp_activations}; choose "
                "another format"
            )
        kind = "umt5" if config.relative_bias_per_layer else "t5"
        return record | {
            "architectures": [f"{kind.upper()}ForConditionalGeneration"],
            "model_type": kind,
            "feed_forward_proj": _GATED + activation if gate else _WRITTEN[activation],
            "tie_word_embeddings": config.logits_via_embedding,
            _START: config.decoder_start_id,
        }

    def parameters(self, record: Record, config: T5Config, arrays: Arrays) -> dict[str, np.ndarray]:
        """Returns the arrays under T5X's names, as views; arrays that a T5 lacks keep their names.

        Data is read only from an output layer that must be multiplied by a scale.
        """
        table = _embedding(arrays)
        others = {name: array for name, array in arrays.items() if name not in _TABLES}
        parameters = super().parameters(record, config, {self.anchor: table, **others})
        if not config.logits_via_embedding:
            kernel = parameters.get(HEAD, table.T)
            if scales_logits(record):
                kernel = np.multiply(kernel, 1 / math.sqrt(config.emb_dim), dtype=np.float32)
            parameters[HEAD] = kernel
        return parameters

    def names(self, config: T5Config) -> dict[str, str]:
        """Returns {T5X's name: transformers' name} of all arrays that a model may have."""
        hf_names = super().names(config)
        depths = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
        for stack, depth in depths.items():
            per_layer = config.relative_bias_per_layer
            for layer in range(depth if per_layer else 1):
                layers = f"{stack}/layers_{layer}" if per_layer else stack
                bias = f"{stack}.block.{layer}.layer.0.{_BIAS}.weight"
                hf_names[f"{layers}/relpos_bias/rel_embedding"] = bias
        return hf_names

    def parts_of(self, stack: str) -> Mapping[str, str]:
        """Returns the `parts` of a stack's layers, where an encoder's MLP is layer 1 of a block."""
        return (
            {
                ours.replace("self_attention", "attention"): hf_name.replace("layer.2", "layer.1")
                for ours, hf_name in super().parts_of(stack).items()
            }
            if stack == "encoder"
            else self.parts
        )

    def is_transposed(self, name: str) -> bool:
        """Returns whether the checkpoint's array is [out, in] where T5X's is [in, out]."""
        return name != TABLE

    def has_bytes(self, record: Record) -> bool:
        """Returns whether the tokenizer is ByT5's."""
        return str(record.get("tokenizer_class")).startswith("ByT5Tokenizer")

    def extra_ids(self, record: Record, tokenizer: str) -> int:
        """Returns the number of the vocabulary's sentinels.

        They are in different lists of the tokenizer's record, by the version that saved it.
        """
        if sentinels := len(set(re.findall(r"<extra_id_\d+>", tokenizer))):
            return sentinels
        if self.has_bytes(record):
            return record.get("extra_ids", _BYTES_EXTRA_IDS)
        return record.get("extra_ids", _EXTRA_IDS.get(record["model_type"], 0))

    def tokenizer_record(self, config: T5Config, pieces: int) -> dict[str, object]:
        """Returns the record of T5's tokenizer, with its 100 extra ids if there is room."""
        room = config.vocab_size - pieces >= _EXTRA_IDS["t5"]
        return {"tokenizer_class": "T5Tokenizer", "extra_ids": _EXTRA_IDS["t5"] if room else 0}


def scales_logits(record: Record) -> bool:
    """Returns whether transformers multiplies the decoder's output by 1/sqrt(d_model).

    Version 5 records this. Before, a tied model implied it. mT5's output is never scaled.
    """
    if record["model_type"] == "mt5":
        return False
    tied = record.get("tie_word_embeddings")
    return record.get("scale_decoder_outputs", tied) is not False


def _ids(record: Record) -> dict[str, Any]:
    """Returns the config's fields of start, padding and stop ids, by default T5's usual ids."""
    ids = {name: record.get(name) for name in (_START, _PAD, _ENDS)}
    pad = PAD_ID if ids[_PAD] is None else ids[_PAD]
    start = pad if ids[_START] is None else ids[_START]
    ends = EOS_ID if ids[_ENDS] is None else ids[_ENDS]
    ends = ends if isinstance(ends, list) else [ends]
    return {"decoder_start_id": start, "pad_id": pad, "stop_ids": ends}


def _activations(record: Record) -> tuple[str, ...]:
    default = "relu" if record["model_type"] == "t5" else "gated-gelu"
    projection = str(record.get("feed_forward_proj", default))
    # 'gated-gelu' has always meant the approximation, whatever 'gelu' means.
    named = "gelu_new" if projection == "gated-gelu" else projection.removeprefix(_GATED)
    name = record.get("dense_act_fn", named)
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"the activation is {name!r} (feed_forward_proj {projection!r}), which T5X's network "
            f"lacks; known: {', '.join(_ACTIVATIONS)}"
        )
    gate = ("linear",) if projection.startswith(_GATED) else ()
    return (_ACTIVATIONS[name], *gate)


def _embedding(arrays: Arrays) -> np.ndarray:
    tables = [name for name in _TABLES if name in arrays]
    if not tables:
        raise ValueError(f"the array {_TABLES[0]} is missing; copy the checkpoint again")
    first, *others = tables
    for name in others:
        if not _same(arrays[first], arrays[name]):
            raise ValueError(
                f"{first} and {name} differ, and T5 has one table of embeddings; use another "
                "checkpoint"
            )
    return arrays[first]


def _same(a: np.ndarray, b: np.ndarray, rows: int = 1024) -> bool:
    """Returns whether two matrices are equal. Unequal ones mostly differ in the first rows read."""
    return a.shape == b.shape and all(
        np.array_equal(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows)
    )


def _check_names(names: Collection[str], record: Record) -> None:
    """Raises ValueError for names that a T5ForConditionalGeneration does not have."""
    what = ", ".join(record.get("architectures") or ["no architecture"])
    _check_prefix(names, what)
    if adapter := next((n for n in names if any(part in n for part in _ADAPTERS)), None):
        raise ValueError(f"{adapter} is of an adapter that is not merged; {_MERGE}")
    others = sorted(name for name in names if not name.startswith(_PART_NAMES))
    lacks = next((what for what, name in _NEEDED.items() if not _has(names, name)), None)
    if lacks == "decoder" or (lacks and others):
        raise ValueError(
            f"this has no {lacks} ({what} by its record), but {_list(others or sorted(names))}; "
            "give a T5ForConditionalGeneration"
        )


def _check_prefix(names: Collection[str], what: str) -> None:
    for name in names:
        for anchor in _ANCHORS:
            prefix, separator, _ = name.partition(anchor)
            if not separator or not prefix or not prefix.endswith(".") or prefix in _PART_NAMES:
                continue
            if prefix.startswith(_PART_NAMES):
                continue  # of a part with parts of its own
            if outside := sorted(n for n in names if not n.startswith(prefix)):
                raise ValueError(
                    f"this is another model ({what} by its record): a T5 under {prefix!r}, and "
                    f"{_list(outside)}; give a T5ForConditionalGeneration"
                )
            maker, remedy = _WRAPPERS.get(
                prefix.partition(".")[0], ("a wrapper", "the model in it")
            )
            raise ValueError(
                f"the names of its arrays begin with {prefix!r} ({name}), as {maker} writes them; "
                f"save {remedy}"
            )


def _has(names: Collection[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def _list(names: Collection[str], limit: int = 3) -> str:
    shown = ", ".join(list(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
