"""Converts the `config.json` of Hugging Face's T5 to a `T5Config`, and back."""

from __future__ import annotations

from typing import Any

from specdec.models.bases.decoder_checkpoints import (
    refuse_encoderless,
    refuse_part,
    refuse_quantised,
)
from specdec.models.contract.family import Record
from specdec.models.t5.config import EOS_ID, PAD_ID, T5Config
from specdec.models.t5.drafting import T5DraftConfig

_FIELDS = {  # ours: theirs
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
_REQUIRED = ("vocab_size", "d_model", "num_heads", "d_kv", "d_ff", "num_layers")
_START, _PAD, _ENDS = "decoder_start_token_id", "pad_token_id", "eos_token_id"
# Theirs: ours. Our gelu is the tanh approximation, as in T5X and Flax; their 'gelu' is exact.
_ACTIVATIONS = {"relu": "relu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu"}
_WRITTEN = {"relu": "relu", "gelu": "gelu_new", "silu": "silu"}
_GATED = "gated-"


def from_record(record: Record) -> T5Config:
    """Returns the model that a record describes, tied if its logits are scaled."""
    _check(record)
    fields = {ours: record[name] for ours, name in _FIELDS.items() if record.get(name) is not None}
    fields.setdefault("num_decoder_layers", record["num_layers"])
    fields["mlp_activations"] = _activations(record)
    fields["relative_bias_per_layer"] = record["model_type"] == "umt5"
    try:
        fields |= _ids(record)
        return T5Config(**fields, logits_via_embedding=scales_logits(record))
    except (TypeError, ValueError) as error:
        raise ValueError(f"this does not describe a T5 ({error}); copy it again") from error


def scales_logits(record: Record) -> bool:
    """Returns whether transformers multiplies the decoder's output by 1/sqrt(d_model).

    Version 5 records this. Before, a tied model implied it. mT5's output is never scaled.
    """
    if record["model_type"] == "mt5":
        return False
    tied = record.get("tie_word_embeddings")
    return record.get("scale_decoder_outputs", tied) is not False


def to_record(config: T5Config) -> dict[str, object]:
    """Returns the contents of a model's `config.json`."""
    config = T5DraftConfig.of(config)  # in which nothing may be set
    refuse_part(config, "transformers' T5")
    refuse_encoderless(config, "transformers' T5")
    activation, *gate = config.mlp_activations
    if activation not in _WRITTEN or gate not in ([], ["linear"]):
        raise ValueError(
            f"transformers' T5 has no MLP with mlp_activations={config.mlp_activations}; choose "
            "another format"
        )
    kind = "umt5" if config.relative_bias_per_layer else "t5"
    return {
        "architectures": [f"{kind.upper()}ForConditionalGeneration"],
        "model_type": kind,
        "is_encoder_decoder": True,
        "feed_forward_proj": _GATED + activation if gate else _WRITTEN[activation],
        "tie_word_embeddings": config.logits_via_embedding,
        **{hf_name: getattr(config, ours) for ours, hf_name in _FIELDS.items()},
        _PAD: config.pad_id,
        _ENDS: config.stop_ids[0] if len(config.stop_ids) == 1 else list(config.stop_ids),
        _START: config.decoder_start_id,
    }


def _ids(record: Record) -> dict[str, Any]:
    """Returns the fields of the special ids; those that the record lacks are T5's."""
    ids = {name: record.get(name) for name in (_START, _PAD, _ENDS)}
    pad = PAD_ID if ids[_PAD] is None else ids[_PAD]
    start = pad if ids[_START] is None else ids[_START]
    ends = EOS_ID if ids[_ENDS] is None else ids[_ENDS]
    ends = ends if isinstance(ends, list) else [ends]
    return {"decoder_start_id": start, "pad_id": pad, "stop_ids": ends}


def _check(record: Record) -> None:
    if record.get("is_encoder_decoder") is False:
        raise ValueError(
            "this is of an encoder alone (is_encoder_decoder is false); give a "
            "T5ForConditionalGeneration"
        )
    refuse_quantised(record)
    missing = [name for name in _REQUIRED if record.get(name) is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; copy it again")


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
