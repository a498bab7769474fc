"""LLaMA's checkpoints in transformers' format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.family_checkpoints import (
    FamilyCheckpoints,
    attention_parts,
    fields_of_record,
    refuse_other,
)
from specdec.models.contract.family import Record
from specdec.models.llama.llama_model import LlamaConfig

_SCALING = {
    "rope_factor": "factor",
    "rope_low_factor": "low_freq_factor",
    "rope_high_factor": "high_freq_factor",
    "rope_context": "original_max_position_embeddings",
}  # {our field: their entry of `rope_scaling`}
_OF_KIND = {"default": 0, "linear": 1, "llama3": 4}  # how many of `_SCALING` a kind has
_SUPPORTED = {"hidden_act": ("silu",), "attention_bias": (False, None), "mlp_bias": (False, None)}


class LlamaCheckpoints(FamilyCheckpoints):
    """LLaMA's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("llama",)
    architecture = "LlamaForCausalLM"
    anchor = "model.embed_tokens.weight"
    unused = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
    layers = "model.layers"
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "emb_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "mlp_dim": "intermediate_size",
        "num_decoder_layers": "num_hidden_layers",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "context": "max_position_embeddings",
        "logits_via_embedding": "tie_word_embeddings",
        "layer_norm_epsilon": "rms_norm_eps",
        "rope_theta": "rope_theta",
    }
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "input_layernorm",
        **attention_parts("self_attention", "self_attn"),
        "pre_mlp_layer_norm/scale": "post_attention_layernorm",
        "mlp/wi_0/kernel": "mlp.gate_proj",
        "mlp/wi_1/kernel": "mlp.up_proj",
        "mlp/wo/kernel": "mlp.down_proj",
    }
    others: ClassVar[Mapping[str, str]] = {"decoder/decoder_norm/scale": "model.norm"}

    def described(self, record: Record) -> LlamaConfig:
        refuse_other(record, _SUPPORTED)
        scaling = record.get("rope_parameters") or record.get("rope_scaling") or {}
        record = {**record, "rope_theta": scaling.get("rope_theta", record.get("rope_theta"))}
        fields = fields_of_record(record, self.fields, required=5)
        fields.setdefault("num_kv_heads", fields["num_heads"])
        fields.setdefault("head_dim", fields["emb_dim"] // max(fields["num_heads"], 1))
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in _OF_KIND:
            raise ValueError(
                f"rope_scaling is of the kind {kind!r}, and supported are {', '.join(_OF_KIND)}; "
                "use another model"
            )
        names = list(_SCALING.items())[: _OF_KIND[kind]]
        if missing := [hf_name for _, hf_name in names if hf_name not in scaling]:
            raise ValueError(f"rope_scaling lacks {', '.join(missing)}; copy config.json again")
        scaled = {ours: scaling[hf_name] for ours, hf_name in names}
        return LlamaConfig(**fields, rope_scaling=kind, **scaled)

    def to_record(self, config: LlamaConfig) -> dict[str, object]:
        scaling: dict[str, object] | None = None
        if config.rope_scaling != "default":
            names = list(_SCALING.items())[: _OF_KIND[config.rope_scaling]]
            scaling = {hf_name: getattr(config, ours) for ours, hf_name in names}
            scaling["rope_type"] = config.rope_scaling
            if "original_max_position_embeddings" in scaling:
                scaling["original_max_position_embeddings"] = int(config.rope_context)
        return super().to_record(config) | {"hidden_act": "silu", "rope_scaling": scaling}
