"""T5Gemma's checkpoints in transformers' format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from specdec.common.values import integers
from specdec.models.bases.family_checkpoints import (
    FamilyCheckpoints,
    attention_parts,
    fields_of_record,
    record_of_ids,
    refuse_other,
)
from specdec.models.contract.family import Record
from specdec.models.t5gemma.t5gemma_model import T5GemmaConfig

_SIZES = {
    "emb_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_dim": "intermediate_size",
}  # in the order of `StackSizes`
STACKS = ("encoder", "decoder")
KNOWN: Mapping[str, tuple[object, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False, None),
}


class T5GemmaCheckpoints(FamilyCheckpoints):
    """T5Gemma's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("t5gemma",)
    architecture = "T5GemmaForConditionalGeneration"
    anchor = "model.decoder.embed_tokens.weight"
    head = "lm_head.out_proj.weight"
    config_class: ClassVar[type[T5GemmaConfig]] = T5GemmaConfig  # the class of the configs
    shared: ClassVar[Mapping[str, str]] = {
        "query_scalar": "query_pre_attn_scalar",
        "window": "sliding_window",
        "attention_cap": "attn_logit_softcapping",
        "layer_norm_epsilon": "rms_norm_eps",
    }  # {our field: their field} with one value for both stacks
    fields: ClassVar[Mapping[str, str]] = {
        **_SIZES,
        "num_decoder_layers": "num_hidden_layers",
        "vocab_size": "vocab_size",
        **shared,
        "logits_cap": "final_logit_softcapping",
    }
    # our fields of rotary positions, which `stack` finds
    rotary: ClassVar[tuple[str, ...]] = ("rope_theta",)
    layers = "model.{stack}.layers"
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "pre_self_attn_layernorm",
        **attention_parts("self_attention", "self_attn"),
        "post_self_attention_layer_norm/scale": "post_self_attn_layernorm",
        "pre_mlp_layer_norm/scale": "pre_feedforward_layernorm",
        "mlp/wi_0/kernel": "mlp.gate_proj",
        "mlp/wi_1/kernel": "mlp.up_proj",
        "mlp/wo/kernel": "mlp.down_proj",
        "post_mlp_layer_norm/scale": "post_feedforward_layernorm",
        "pre_cross_attention_layer_norm/scale": "pre_cross_attn_layernorm",
        **attention_parts("encoder_decoder_attention", "cross_attn"),
        "post_cross_attention_layer_norm/scale": "post_cross_attn_layernorm",
    }
    others: ClassVar[Mapping[str, str]] = {
        "encoder/encoder_norm/scale": "model.encoder.norm",
        "decoder/decoder_norm/scale": "model.decoder.norm",
        "encoder/token_embedder/embedding": "model.encoder.embed_tokens",
    }

    def described(self, record: Record) -> T5GemmaConfig:
        missing = [name for name in STACKS if not isinstance(record.get(name), dict)]
        if missing:
            raise ValueError(f"{' and '.join(missing)} missing; copy config.json again")
        encoder, decoder = (self.stack(name, record[name]) for name in STACKS)
        for hf_name in (*self.shared.values(), *self.rotary):
            if encoder.get(hf_name) != decoder.get(hf_name):
                raise ValueError(
                    f"{hf_name} is {encoder.get(hf_name)!r} in the encoder and "
                    f"{decoder.get(hf_name)!r} in the decoder; use a model in which they agree"
                )
        fields = fields_of_record(decoder, self.fields, required=7)
        for name in ("attention_cap", "logits_cap"):
            if name not in fields and self.fields.get(name) in decoder:
                fields[name] = None  # null is no cap
        fields |= {f"encoder_{ours}": encoder[name] for ours, name in _SIZES.items()}
        fields |= {name: decoder[name] for name in self.rotary}
        fields["num_encoder_layers"] = encoder["num_hidden_layers"]
        start = record.get("decoder_start_token_id", decoder.get("bos_token_id"))
        fields |= {} if start is None else {"decoder_start_id": start}
        fields["logits_via_embedding"] = record.get("tie_word_embeddings", True)
        return self.config_class(**fields, **self.others_of(record))

    def stack(self, name: str, record: Record) -> Record:
        """Returns a stack's part of the record, with the fields `rotary` added."""
        layers = record.get("num_hidden_layers", 0)
        refuse_other(record, {**KNOWN, "layer_types": (self.layer_types(layers, 2), None)})
        rope = record.get("rope_parameters") or record.get("rope_scaling") or {}
        if (kind := rope.get("rope_type", "default")) != "default":
            raise ValueError(f"{name} has rope_type {kind!r}, and supported is 'default'")
        theta = rope.get("rope_theta", record.get("rope_theta"))
        return {**record, "rope_theta": theta or 10_000.0}

    def others_of(self, record: Record) -> dict[str, Any]:
        """Returns further fields of the config, from the part of a record outside of stacks."""
        return {}

    def layer_types(self, layers: int, pattern: int) -> list[str]:
        """Returns transformers' names of layer types; every `pattern`-th layer has no window."""
        integers(0, 1000).check("num_hidden_layers", layers)
        return [f"{'sliding' if i % pattern else 'full'}_attention" for i in range(1, layers + 1)]

    def to_record(self, config: T5GemmaConfig) -> dict[str, Any]:
        """Returns a model's record; raises ValueError if it has no encoder, or a part of a head."""
        flat = super().to_record(config)
        ids = record_of_ids(config) | {"bos_token_id": config.decoder_start_id}
        decoder = {hf_name: flat.pop(hf_name) for hf_name in self.fields.values()}
        decoder |= {"hidden_activation": "gelu_pytorch_tanh", **ids, **self.kind_of(config)}
        encoder = decoder | dict(zip(_SIZES.values(), config.encoder, strict=False))
        encoder["num_hidden_layers"] = config.num_encoder_layers
        return flat | {
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.logits_via_embedding,
            "decoder_start_token_id": config.decoder_start_id,
            **ids,
            "encoder": encoder,
            "decoder": decoder,
        }

    def kind_of(self, config: T5GemmaConfig) -> dict[str, object]:
        """Returns the entries in both stacks' records that only this version of T5Gemma has."""
        return {"model_type": "t5_gemma_module", "rope_theta": config.rope_theta}
