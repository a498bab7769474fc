"""LLaVA's checkpoints in transformers' format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from specdec.common.values import fields_of
from specdec.models.bases.family_checkpoints import record_of_ids, refuse_other
from specdec.models.contract.family import Arrays, Record
from specdec.models.llama.llama_checkpoints import LlamaCheckpoints
from specdec.models.llava.clip import ClipConfig
from specdec.models.llava.llava_network import LlavaConfig

_TOWER, _PROJECTOR = "vision_tower.vision_model", "multi_modal_projector"
# Records leave out what are the defaults of transformers' classes.
_TEXT = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_VISION = {
    "image_size": ("image_size", 224),
    "patch_size": ("patch_size", 32),
    "emb_dim": ("hidden_size", 768),
    "num_heads": ("num_attention_heads", 12),
    "mlp_dim": ("intermediate_size", 3072),
    "num_layers": ("num_hidden_layers", 12),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-5),
}  # ours: theirs, and the default
_SUPPORTED = {
    "projector_hidden_act": ("gelu",),
    "vision_feature_select_strategy": ("default",),
    "multimodal_projector_bias": (True,),
}
_SUPPORTED_VISION = {
    "model_type": ("clip_vision_model",),
    "hidden_act": ("quick_gelu",),
    "num_channels": (3,),
}
_OF_LAYER = {
    "pre_self_attention_layer_norm": "layer_norm1",
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/out": "self_attn.out_proj",
    "pre_mlp_layer_norm": "layer_norm2",
    "mlp/wi": "mlp.fc1",
    "mlp/wo": "mlp.fc2",
}
# Names of transformers 4.52 and later within the library, and of 5 in files: the oldest ones, which
# all versions read, are written here.
_RENAMED = (
    (re.compile(r"^(model\.)?language_model\.(?!model\.|lm_head\.)"), "language_model.model."),
    (re.compile(r"^lm_head\."), "language_model.lm_head."),
    (re.compile(r"^model\.(?=vision_tower\.|multi_modal_projector\.)"), ""),
    (re.compile(r"^vision_tower\.(?!vision_model\.)"), f"{_TOWER}."),
)


class LlavaCheckpoints(LlamaCheckpoints):
    """LLaVA's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("llava",)
    architecture = "LlavaForConditionalGeneration"
    anchor = "language_model.model.embed_tokens.weight"
    head = "language_model.lm_head.weight"
    layers = "language_model.model.layers"
    others: ClassVar[Mapping[str, str]] = {
        "decoder/decoder_norm/scale": "language_model.model.norm"
    }
    unused = re.compile(
        r"language_model\.model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
        rf"|{re.escape(_TOWER)}\.embeddings\.position_ids"
    )

    def described(self, record: Record) -> LlavaConfig:
        parts = {name: record.get(f"{name}_config") for name in ("text", "vision")}
        if missing := [name for name, part in parts.items() if not isinstance(part, dict)]:
            names = " and ".join(f"{name}_config" for name in missing)
            raise ValueError(f"{names} missing; copy config.json again")
        text, vision = (dict(part or {}) for part in parts.values())
        refuse_other(record, _SUPPORTED)
        refuse_other(text, {"model_type": ("llama",)})
        refuse_other(vision, _SUPPORTED_VISION)
        fields = {name: value for name, value in text.items() if value is not None}
        ids = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
        fields |= {name: record[name] for name in ids if record.get(name) is not None}
        language = super().described(_TEXT | fields)
        sizes = {ours: vision.get(name, usual) for ours, (name, usual) in _VISION.items()}
        return LlavaConfig(
            **fields_of(language),
            vision=ClipConfig(**sizes, feature_layer=record.get("vision_feature_layer", -2)),
            image_id=record.get("image_token_index", record.get("image_token_id", 32_000)),
        )

    def to_record(self, config: LlavaConfig) -> dict[str, object]:
        text = super().to_record(config)
        text |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        vision = {hf_name: getattr(config.vision, ours) for ours, (hf_name, _) in _VISION.items()}
        vision |= {"model_type": "clip_vision_model", "hidden_act": "quick_gelu"}
        return {
            "architectures": [self.architecture],
            "model_type": "llava",
            "image_token_index": config.image_id,
            "image_seq_length": config.vision.num_patches,
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": config.logits_via_embedding,
            "vision_feature_layer": config.vision.feature_layer,
            "vision_feature_select_strategy": "default",
            **record_of_ids(config),
            "text_config": text,
            "vision_config": vision,
        }

    def names(self, config: LlavaConfig) -> dict[str, str]:
        embeddings = f"{_TOWER}.embeddings"
        modules = {
            "projector/wi": f"{_PROJECTOR}.linear_1",
            "projector/wo": f"{_PROJECTOR}.linear_2",
            "vision/pre_layer_norm": f"{_TOWER}.pre_layrnorm",
            "vision/post_layer_norm": f"{_TOWER}.post_layernorm",
        }
        for layer in range(config.vision.num_layers):
            for ours, hf_name in _OF_LAYER.items():
                modules[f"vision/layers_{layer}/{ours}"] = (
                    f"{_TOWER}.encoder.layers.{layer}.{hf_name}"
                )
        hf_names = super().names(config) | {
            "vision/class_embedding": f"{embeddings}.class_embedding",
            "vision/patch_kernel": f"{embeddings}.patch_embedding.weight",
            "vision/position_embedder/embedding": f"{embeddings}.position_embedding.weight",
        }
        for ours, hf_name in modules.items():
            weight = "scale" if ours.endswith("norm") else "kernel"
            hf_names |= {f"{ours}/{weight}": f"{hf_name}.weight", f"{ours}/bias": f"{hf_name}.bias"}
        return hf_names

    def _prefixed(self, arrays: Arrays) -> Arrays:
        """Returns the arrays by their oldest names in transformers, which are written here."""
        return {_renamed(name): array for name, array in arrays.items()}


def _renamed(name: str) -> str:
    for pattern, by in _RENAMED:
        name = pattern.sub(by, name)
    return name
