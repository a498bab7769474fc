"""T5Gemma's checkpoints in transformers' format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from specdec.models.decoder_checkpoints import (
    HEAD,
    TABLE,
    DecoderCheckpoints,
    fields_of_record,
    record_of_ids,
    refuse_other,
    refuse_part,
)
from specdec.models.family import Record
from specdec.models.t5gemma.t5gemma_model import T5GemmaConfig

_SELF = {
    "pre_self_attention_layer_norm/scale": "pre_self_attn_layernorm",
    "self_attention/query/kernel": "self_attn.q_proj",
    "self_attention/key/kernel": "self_attn.k_proj",
    "self_attention/value/kernel": "self_attn.v_proj",
    "self_attention/out/kernel": "self_attn.o_proj",
    "post_self_attention_layer_norm/scale": "post_self_attn_layernorm",
    "pre_mlp_layer_norm/scale": "pre_feedforward_layernorm",
    "mlp/wi_0/kernel": "mlp.gate_proj",
    "mlp/wi_1/kernel": "mlp.up_proj",
    "mlp/wo/kernel": "mlp.down_proj",
    "post_mlp_layer_norm/scale": "post_feedforward_layernorm",
}  # of a layer of either stack
_CROSS = {
    "pre_cross_attention_layer_norm/scale": "pre_cross_attn_layernorm",
    "encoder_decoder_attention/query/kernel": "cross_attn.q_proj",
    "encoder_decoder_attention/key/kernel": "cross_attn.k_proj",
    "encoder_decoder_attention/value/kernel": "cross_attn.v_proj",
    "encoder_decoder_attention/out/kernel": "cross_attn.o_proj",
    "post_cross_attention_layer_norm/scale": "post_cross_attn_layernorm",
}
_SIZES = ("emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim")
_THEIR_SIZES = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    "intermediate_size",
)
# Of both stacks, which agree in them.
_SHARED = {
    "query_scalar": "query_pre_attn_scalar",
    "window": "sliding_window",
    "attention_cap": "attn_logit_softcapping",
    "layer_norm_epsilon": "rms_norm_eps",
}


class T5GemmaCheckpoints(DecoderCheckpoints):
    """The checkpoints; see `DecoderCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("t5gemma",)
    architecture = "T5GemmaForConditionalGeneration"
    anchor = "model.decoder.embed_tokens.weight"
    head = "lm_head.out_proj.weight"
    fields: ClassVar[Mapping[str, str]] = {
        **dict(zip(_SIZES, _THEIR_SIZES, strict=True)),
        "num_decoder_layers": "num_hidden_layers",
        "vocab_size": "vocab_size",
        **_SHARED,
        "logits_cap": "final_logit_softcapping",
    }

    def described(self, record: Record) -> T5GemmaConfig:
        """Returns the config of a record; see `DecoderCheckpoints`."""
        stacks = {name: record.get(name) for name in ("encoder", "decoder")}
        if missing := [name for name, stack in stacks.items() if not isinstance(stack, dict)]:
            raise ValueError(f"{' and '.join(missing)} missing; copy config.json again")
        encoder, decoder = (_checked(name, stack) for name, stack in stacks.items())
        for theirs in (*_SHARED.values(), "rope_theta"):
            if encoder.get(theirs) != decoder.get(theirs):
                raise ValueError(
                    f"{theirs} is {encoder.get(theirs)!r} in the encoder and "
                    f"{decoder.get(theirs)!r} in the decoder; use a model in which they agree"
                )
        fields = fields_of_record(decoder, self.fields, required=7)
        for name in ("attention_cap", "logits_cap"):
            if name not in fields and self.fields[name] in decoder:
                fields[name] = None  # null is no cap
        own = {
            f"encoder_{ours}": encoder[name] for ours, name in self.fields.items() if ours in _SIZES
        }
        own["num_encoder_layers"] = encoder["num_hidden_layers"]
        start = record.get("decoder_start_token_id", decoder.get("bos_token_id"))
        own |= {} if start is None else {"decoder_start_id": start}
        tied = record.get("tie_word_embeddings", True)
        theta = decoder["rope_theta"] or 10_000.0
        return T5GemmaConfig(**fields, **own, rope_theta=theta, logits_via_embedding=tied)

    def to_record(self, config: Any) -> dict[str, Any]:
        """Returns their record of a model; raises ValueError if it is a part of one."""
        refuse_part(config, self.architecture)
        if config.encoded_dim is not None:
            raise ValueError(
                "the model has no encoder (encoded_dim), and transformers' T5Gemma has one; choose "
                "another format"
            )
        ids = record_of_ids(config) | {"bos_token_id": config.decoder_start_id}
        decoder = {theirs: getattr(config, ours) for ours, theirs in self.fields.items()}
        decoder |= {"model_type": "t5_gemma_module", "rope_theta": config.rope_theta, **ids}
        decoder |= {"hidden_activation": "gelu_pytorch_tanh"}
        encoder = decoder | dict(zip(_THEIR_SIZES, config.encoder, strict=False))
        encoder["num_hidden_layers"] = config.num_encoder_layers
        return {
            "architectures": [self.architecture],
            "model_type": "t5gemma",
            "is_encoder_decoder": True,
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.logits_via_embedding,
            "decoder_start_token_id": config.decoder_start_id,
            **ids,
            "encoder": encoder,
            "decoder": decoder,
        }

    def names(self, config: Any) -> dict[str, str]:
        """Returns {our name: theirs} of all parameters that a model may have."""
        found = {
            TABLE: "model.decoder.embed_tokens",
            HEAD: "lm_head.out_proj",
            "encoder/token_embedder/embedding": "model.encoder.embed_tokens",
            "encoder/encoder_norm/scale": "model.encoder.norm",
            "decoder/decoder_norm/scale": "model.decoder.norm",
        }
        depths = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
        for stack, depth in depths.items():
            parts = _SELF if stack == "encoder" else _SELF | _CROSS
            for layer in range(depth):
                for ours, theirs in parts.items():
                    name = f"model.{stack}.layers.{layer}.{theirs}"
                    found[f"{stack}/layers_{layer}/{ours}"] = name
        return {ours: f"{theirs}.weight" for ours, theirs in found.items()}


def _checked(name: str, stack: Any) -> dict[str, Any]:
    """Returns the record of a stack with `rope_theta`; raises ValueError if it is another one."""
    layers = stack.get("num_hidden_layers", 0)
    usual = [f"{kind}_attention" for kind in ("sliding", "full")] * layers
    known = {"hidden_activation": ("gelu_pytorch_tanh",), "attention_bias": (False, None)}
    refuse_other(stack, known | {"layer_types": (usual[:layers], None)})
    rope = stack.get("rope_parameters") or stack.get("rope_scaling") or {}
    if (kind := rope.get("rope_type", "default")) != "default":
        raise ValueError(f"{name} has rope_type {kind!r}, and supported is 'default'")
    return {**stack, "rope_theta": rope.get("rope_theta", stack.get("rope_theta"))}
