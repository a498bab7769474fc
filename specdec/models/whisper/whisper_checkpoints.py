"""Whisper's checkpoints in transformers' format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.family_checkpoints import (
    FamilyCheckpoints,
    attention_parts,
    fields_of_record,
    refuse_other,
)
from specdec.models.contract.family import Record
from specdec.models.whisper.whisper_model import WhisperConfig

_PRODUCTS = "q_proj k_proj v_proj out_proj"
_SAME = {
    "encoder_attention_heads": "decoder_attention_heads",
    "encoder_ffn_dim": "decoder_ffn_dim",
}  # sizes in which the two stacks agree here


class WhisperCheckpoints(FamilyCheckpoints):
    """Whisper's checkpoints in transformers' format; see `FamilyCheckpoints`."""

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

    layers = "model.{stack}.layers"
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "self_attn_layer_norm",
        **attention_parts("self_attention", "self_attn", _PRODUCTS),
        "pre_cross_attention_layer_norm/scale": "encoder_attn_layer_norm",
        **attention_parts("encoder_decoder_attention", "encoder_attn", _PRODUCTS),
        "pre_mlp_layer_norm/scale": "final_layer_norm",
        "mlp/wi/kernel": "fc1",
        "mlp/wo/kernel": "fc2",
    }
    others: ClassVar[Mapping[str, str]] = {
        "encoder/positions": "model.encoder.embed_positions",
        "encoder/convolution_0/filters": "model.encoder.conv1",
        "encoder/convolution_1/filters": "model.encoder.conv2",
        "encoder/encoder_norm/scale": "model.encoder.layer_norm",
        "decoder/position_embedder/embedding": "model.decoder.embed_positions",
        "decoder/decoder_norm/scale": "model.decoder.layer_norm",
    }

    def described(self, record: Record) -> WhisperConfig:
        refuse_other(record, {"activation_function": ("gelu",)})
        for hf_name, other in _SAME.items():
            if record.get(hf_name) != record.get(other):
                raise ValueError(
                    f"{hf_name} is {record.get(hf_name)} and {other} {record.get(other)}; use a "
                    "model in which they agree"
                )
        return WhisperConfig(**fields_of_record(record, self.fields, required=6))

    def to_record(self, config: WhisperConfig) -> dict[str, object]:
        end = config.stop_ids[0]
        # transformers' Whisper pads with the stop id, and has defaults for a larger vocabulary.
        ids = {"pad_token_id": end, "bos_token_id": end}
        return (
            ids
            | super().to_record(config)
            | {
                "activation_function": "gelu",
                "encoder_attention_heads": config.num_heads,
                "encoder_ffn_dim": config.mlp_dim,
                "begin_suppress_tokens": None,
            }
        )

    def is_transposed(self, name: str) -> bool:
        """Returns whether the checkpoint's array has the axes of ours in reverse order."""
        return name.endswith(("kernel", "filters"))
