"""T5Gemma 2's checkpoints in transformers' format. Arrays for pictures are not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from specdec.models.bases.family_checkpoints import refuse_other
from specdec.models.contract.family import Arrays, Record
from specdec.models.t5gemma.t5gemma_checkpoints import KNOWN, T5GemmaCheckpoints
from specdec.models.t5gemma.t5gemma_model import T5GemmaConfig
from specdec.models.t5gemma2.t5gemma2_model import T5Gemma2Config

_TABLE = "model.encoder.embed_tokens"
_END = "eoi_token_index"
_V1 = T5GemmaCheckpoints


class T5Gemma2Checkpoints(T5GemmaCheckpoints):
    """T5Gemma 2's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("t5gemma2",)
    architecture = "T5Gemma2ForConditionalGeneration"
    anchor = f"{_TABLE}.weight"
    config_class: ClassVar[type[T5GemmaConfig]] = T5Gemma2Config
    shared: ClassVar[Mapping[str, str]] = {
        ours: hf_name for ours, hf_name in _V1.shared.items() if ours != "attention_cap"
    }
    fields: ClassVar[Mapping[str, str]] = {
        ours: hf_name for ours, hf_name in _V1.fields.items() if ours != "attention_cap"
    }
    rotary: ClassVar[tuple[str, ...]] = ("rope_theta", "local_rope_theta", "rope_factor", "pattern")
    parts: ClassVar[Mapping[str, str]] = {
        **{ours: name for ours, name in _V1.parts.items() if "cross" not in name},
        "self_attention/query_norm/scale": "self_attn.q_norm",
        "self_attention/key_norm/scale": "self_attn.k_norm",
    }
    others: ClassVar[Mapping[str, str]] = {
        ours: name for ours, name in _V1.others.items() if "embed" not in name
    }
    unused: ClassVar[re.Pattern[str]] = re.compile(
        r"model\.encoder\.(vision_tower|multi_modal_projector)\..*|model\.decoder\.embed_tokens\..*"
    )

    def stack(self, name: str, record: Record) -> Record:
        record = record.get("text_config", record)
        layers, layer_types = record.get("num_hidden_layers", 0), record.get("layer_types")
        pattern = 6
        if layer_types and "full_attention" in layer_types:
            pattern = layer_types.index("full_attention") + 1
        kinds = {"layer_types": (self.layer_types(layers, pattern), None)}
        refuse_other(record, {**KNOWN, **kinds, "attn_logit_softcapping": (None,)})
        ropes = record.get("rope_parameters") or {}
        everywhere = record.get("rope_scaling") or ropes.get("full_attention") or {}
        local = ropes.get("sliding_attention") or {}
        kinds = [rope.get("rope_type", "default") for rope in (everywhere, local)]
        if kinds[0] not in ("default", "linear") or kinds[1] != "default":
            raise ValueError(
                f"{name} has the rope_type {kinds[0]!r} in global and {kinds[1]!r} in local "
                "layers, and supported are 'default', and 'linear' in global ones"
            )
        full = ropes.get("full_attention") or {}
        return {
            **record,
            "rope_theta": full.get("rope_theta", record.get("rope_theta", 1_000_000.0)),
            "local_rope_theta": local.get(
                "rope_theta", record.get("rope_local_base_freq", 10_000.0)
            ),
            "rope_factor": everywhere.get("factor", 1.0),
            "pattern": pattern,
        }

    def others_of(self, record: Record) -> dict[str, Any]:
        end = record.get(_END) or record["encoder"].get(_END)
        return {} if end is None else {"end_of_image_id": end}

    def to_record(self, config: T5Gemma2Config) -> dict[str, Any]:
        record = super().to_record(config)
        text = record["encoder"] | {"model_type": "t5gemma2_text"}
        text["layer_types"] = self.layer_types(config.num_encoder_layers, config.pattern)
        end = {_END: config.end_of_image_id}
        encoder = {"model_type": "t5gemma2_encoder", "text_config": text, **end}
        return record | end | {"encoder": encoder}

    def kind_of(self, config: T5Gemma2Config) -> dict[str, object]:
        scaled = {"rope_type": "linear", "factor": config.rope_factor}
        everywhere = scaled if config.rope_factor != 1 else {"rope_type": "default"}
        local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
        return {
            "model_type": "t5gemma2_decoder",
            "layer_types": self.layer_types(config.num_decoder_layers, config.pattern),
            "rope_parameters": {
                "full_attention": everywhere | {"rope_theta": config.rope_theta},
                "sliding_attention": local,
            },
        }

    def _prefixed(self, arrays: Arrays) -> Arrays:
        """Returns the arrays by the names that transformers 5 saves."""
        named = {name.replace(".text_model.", "."): array for name, array in arrays.items()}
        return super()._prefixed(named)

    def names(self, config: T5Gemma2Config) -> dict[str, str]:
        return super().names(config) | {"end_of_image/embedding": f"{_TABLE}.eoi_embedding"}
