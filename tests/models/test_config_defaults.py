"""The fields of configs that need not be given: pytest tests/models/test_config_defaults.py

They are those of the first published checkpoints of a family, or switch something off.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from specdec.models.gpt2 import Gpt2Config
from specdec.models.llama import LlamaConfig
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.opt import OptConfig
from specdec.models.t5 import T5Config
from specdec.models.t5gemma import T5GemmaConfig
from specdec.models.t5gemma2 import T5Gemma2Config
from specdec.models.whisper import WhisperConfig

CLIP = ClipConfig(image_size=4, patch_size=2, emb_dim=8, num_heads=2, mlp_dim=12, num_layers=2)
LLAMA = {
    "context": 2048,
    "logits_via_embedding": False,
    "dtype": "float32",
    "layer_norm_epsilon": 1e-5,
    "pad_id": -1,
    "stop_ids": (2,),
    "head_ids": None,
    "rope_theta": 10_000.0,
    "rope_scaling": "default",
    "rope_factor": 1.0,
    "rope_low_factor": 1.0,
    "rope_high_factor": 4.0,
    "rope_context": 8192.0,
}
GEMMA = {
    "query_scalar": 256.0,
    "logits_via_embedding": True,
    "dtype": "float32",
    "layer_norm_epsilon": 1e-6,
    "encoded_dim": None,
    "head_ids": None,
    "decoder_start_id": 2,
    "pad_id": 0,
    "stop_ids": (1,),
}
DEFAULTS: dict[type, dict[str, Any]] = {
    LlamaConfig: LLAMA,
    LlavaConfig: {**LLAMA, "image_id": 32_000},
    ClipConfig: {"feature_layer": -2, "layer_norm_epsilon": 1e-5},
    OptConfig: {
        "context": 2048,
        "logits_via_embedding": True,
        "dtype": "float32",
        "layer_norm_epsilon": 1e-5,
        "pad_id": 1,
        "stop_ids": (2,),
        "head_ids": None,
        "post_norm": False,
        "token_dim": None,
    },
    Gpt2Config: {
        "context": 1024,
        "logits_via_embedding": True,
        "dtype": "float32",
        "layer_norm_epsilon": 1e-5,
        "pad_id": -1,
        "stop_ids": (50256,),
        "head_ids": None,
    },
    WhisperConfig: {
        "mel_bins": 80,
        "input_positions": 1500,  # of 30 seconds
        "context": 448,
        "encoded_dim": None,
        "head_ids": None,
        "logits_via_embedding": True,
        "dtype": "float32",
        "decoder_start_id": 50258,
        "pad_id": -1,
        "stop_ids": (50257,),
    },
    T5Config: {
        "mlp_activations": ("gelu", "linear"),
        "logits_via_embedding": False,
        "dtype": "float32",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "relative_bias_per_layer": False,
        "layer_norm_epsilon": 1e-6,
        "decoder_start_id": 0,
        "pad_id": 0,
        "stop_ids": (1,),
    },
    T5GemmaConfig: {
        **GEMMA,
        "window": 4096,
        "attention_cap": 50.0,
        "logits_cap": 30.0,
        "rope_theta": 10_000.0,
    },
    T5Gemma2Config: {
        **GEMMA,
        "window": 512,
        "attention_cap": None,
        "logits_cap": None,
        "rope_theta": 1_000_000.0,
        "local_rope_theta": 10_000.0,
        "rope_factor": 1.0,
        "pattern": 6,
        "end_of_image_id": 256_000,
    },
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_fields_that_need_not_be_given(kind):
    """Only those of LLaVA itself, which follow the fields of another family, are given by name."""
    parameters = inspect.signature(kind).parameters.values()
    special = {"vocab_size": 300_000, "vision": CLIP}
    given = {x.name: special.get(x.name, 4) for x in parameters if x.default is x.empty}
    found = {f.name: getattr(kind(**given), f.name) for f in dataclasses.fields(kind)}
    assert {name: value for name, value in found.items() if name not in given} == DEFAULTS[kind]
    named = {x.name for x in parameters if x.kind is x.KEYWORD_ONLY}
    assert named == ({"vision", "image_id"} if kind is LlavaConfig else set())
