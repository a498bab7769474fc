"""Whisper's checkpoints in transformers' format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.decoder_checkpoints import (
    HEAD,
    TABLE,
    DecoderCheckpoints,
    fields_of_record,
    record_of_ids,
    refuse_encoderless,
    refuse_other,
    refuse_part,
)
from specdec.models.contract.family import Record
from specdec.models.whisper.whisper_config import WhisperConfig

_SELF = {
    "pre_self_attention_layer_norm/scale": "self_attn_layer_norm",
    "self_attention/query/kernel": "self_attn.q_proj",
    "self_attention/key/kernel": "self_attn.k_proj",
    "self_attention/value/kernel": "self_attn.v_proj",
    "self_attention/out/kernel": "self_attn.out_proj",
    "pre_mlp_layer_norm/scale": "final_layer_norm",
    "mlp/wi/kernel": "fc1",
    "mlp/wo/kernel": "fc2",
}  # of a layer of either stack
_CROSS = {
    "pre_cross_attention_layer_norm/scale": "encoder_attn_layer_norm",
    "encoder_decoder_attention/query/kernel": "encoder_attn.q_proj",
    "encoder_decoder_attention/key/kernel": "encoder_attn.k_proj",
    "encoder_decoder_attention/value/kernel": "encoder_attn.v_proj",
    "encoder_decoder_attention/out/kernel": "encoder_attn.out_proj",
}
_OTHERS = {
    "encoder/convolution_0/filters": "encoder.conv1",
    "encoder/convolution_1/filters": "encoder.conv2",
    "encoder/encoder_norm/scale": "encoder.layer_norm",
    "decoder/decoder_norm/scale": "decoder.layer_norm",
}
_TABLES = {
    TABLE: "decoder.embed_tokens",
    "encoder/positions": "encoder.embed_positions",
    "decoder/position_embedder/embedding": "decoder.embed_positions",
}
_SAME = {
    "encoder_attention_heads": "decoder_attention_heads",
    "encoder_ffn_dim": "decoder_ffn_dim",
}  # sizes in which the two stacks agree here


class WhisperCheckpoints(DecoderCheckpoints):
    """The checkpoints; see `DecoderCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("whisper",)
    architecture = "WhisperForConditionalGeneration"
    anchor = "model.decoder.embed_tokens.weight"
    head = "proj_out.weight"
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "emb_dim": "d_model",
        "num_heads": "decoder_attention_heads",
        "mlp_dim": "decoder_ffn_dim",
        "num_encoder_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "mel_bins": "num_mel_bins",
        "input_positions": "max_source_positions",
        "context": "max_target_positions",
        "logits_via_embedding": "tie_word_embeddings",
        "decoder_start_id": "decoder_start_token_id",
    }

    def described(self, record: Record) -> WhisperConfig:
        """Returns the config of a record; see `DecoderCheckpoints`."""
        refuse_other(record, {"activation_function": ("gelu",)})
        for hf_name, other in _SAME.items():
            if record.get(hf_name) != record.get(other):
                raise ValueError(
                    f"{hf_name} is {record.get(hf_name)} and {other} {record.get(other)}; use a "
                    "model in which they agree"
                )
        return WhisperConfig(**fields_of_record(record, self.fields, required=6))

    def to_record(self, config: WhisperConfig) -> dict[str, object]:
        """Returns their record of a model; see `DecoderCheckpoints`."""
        refuse_part(config, f"a {self.architecture}")
        refuse_encoderless(config, f"a {self.architecture}")
        # Theirs pads with the end of a text, and has defaults for a larger vocabulary.
        end = config.stop_ids[0]
        ids = {"pad_token_id": end, "bos_token_id": end} | record_of_ids(config)
        return {
            "architectures": [self.architecture],
            "model_type": self.MODEL_TYPES[0],
            "is_encoder_decoder": True,
            "activation_function": "gelu",
            **{hf_name: getattr(config, ours) for ours, hf_name in self.fields.items()},
            "encoder_attention_heads": config.num_heads,
            "encoder_ffn_dim": config.mlp_dim,
            "begin_suppress_tokens": None,
            **ids,
        }

    def names(self, config: WhisperConfig) -> dict[str, str]:
        """Returns {our name: theirs} of all parameters that a model may have."""
        modules, depths = dict(_OTHERS), {"encoder": config.num_encoder_layers}
        for stack, depth in (depths | {"decoder": config.num_decoder_layers}).items():
            for layer in range(depth):
                for ours, hf_name in (_SELF if stack == "encoder" else _SELF | _CROSS).items():
                    modules[f"{stack}/layers_{layer}/{ours}"] = f"{stack}.layers.{layer}.{hf_name}"
        hf_names = {ours: f"model.{hf_name}.weight" for ours, hf_name in _TABLES.items()}
        hf_names[HEAD] = self.head
        for ours, hf_name in modules.items():
            hf_names[ours] = f"model.{hf_name}.weight"
            if not ours.endswith("key/kernel"):
                hf_names[f"{ours.rpartition('/')[0]}/bias"] = f"model.{hf_name}.bias"
        return hf_names

    def is_transposed(self, name: str) -> bool:
        """Returns whether their array has its axes in the reverse order of ours."""
        return name.endswith(("kernel", "filters"))
