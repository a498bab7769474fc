"""The fields of configs that need not be given: pytest tests/models/test_config_defaults.py

They are those of the first published checkpoints of a family, or switch something off.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
from test_families import TINY

from specdec.models import partitioning
from specdec.models.bases.architecture import StackSizes
from specdec.models.gpt2 import Gpt2Config
from specdec.models.llama import LlamaConfig
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.opt import OptConfig
from specdec.models.t5 import T5Config, T5DraftConfig
from specdec.models.t5gemma import T5GemmaConfig
from specdec.models.t5gemma.t5gemma_model import T5Gemma
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


T5, WHISPER, LLAVA = (TINY[name] for name in ("t5", "whisper", "llava"))
DRAFT = T5DraftConfig.of(T5)


@pytest.mark.parametrize(
    "config, changes, says",
    [
        (T5, {"dtype": "float16"}, "dtype is 'float16'; give one of 'float32', 'bfloat16'"),
        (T5, {"mlp_activations": ("swish2",)}, "mlp_activations has 'swish2'; known: relu, gelu"),
        (T5, {"num_heads": 0}, "num_heads is 0; give a positive integer"),
        (T5, {"emb_dim": 12.5}, "emb_dim is 12.5; give a positive integer"),
        (DRAFT, {"num_encoder_layers": 0}, "num_encoder_layers is 0; give a positive"),
        (DRAFT, {"encoded_dim": 16}, "num_encoder_layers is 1 and encoded_dim says"),
        (DRAFT, {"encoded_dim": 0, "num_encoder_layers": 0}, "encoded_dim is 0"),
        (DRAFT, {"head_ids": (3, 2)}, "head_ids is 2 ids; give ascending ids below 64, or None"),
        (DRAFT, {"head_ids": (2, 64)}, "head_ids is 2 ids; give ascending ids below 64, or None"),
        (DRAFT, {"head_ids": ()}, r"head_ids is \(\); give"),
        (DRAFT, {"head_ids": 8}, "head_ids is 8; give"),
        (DRAFT, {"head_ids": (1.5,)}, "head_ids is 1 ids; give"),
        (DRAFT, {"head_ids": (-1, 3)}, "head_ids is 2 ids; give"),
        (DRAFT, {"head_ids": (1, 2), "markov_rank": 4}, "markov_rank is 4, which .*leave one of "),
        (WHISPER, {"num_heads": 5}, "num_heads is 5, which does not divide emb_dim 24; gi"),
        (
            TINY["whisper"],
            {"num_encoder_layers": 0},
            "num_encoder_layers is 0 and encoded_dim is N",
        ),
        (WHISPER, {"encoded_dim": 16}, "num_encoder_layers is 1 and encoded_dim is 16; gi"),
        (WHISPER, {"head_ids": (1, 64)}, "head_ids goes up to 64; give ids below 64"),
        (WHISPER, {"pad_id": 1}, "pad_id is 1, which is also one of stop_ids"),
        (
            dataclasses.replace(TINY["llama"], rope_scaling="llama3"),
            {"rope_low_factor": 4.0},
            "rope_low_factor is 4.0; give a number below rope_high_factor 4.0",
        ),
        (LLAVA, {"image_id": 64}, "image_id is 64; give an id below vocab_size 64"),
        (LLAVA, {"image_id": 2}, r"image_id is 2; .* than pad_id 0 and stop_ids \(2,\)"),
        (LLAVA, {"vision": 3}, "vision is 3; give a ClipConfig"),
        (CLIP, {"patch_size": 3}, "patch_size is 3, which does not divide image_size 4"),
        (CLIP, {"num_heads": 3}, "num_heads is 3, which does not divide emb_dim 8; give a divisor"),
        (CLIP, {"feature_layer": -4}, "feature_layer is -4; give one layer, .* from -3 to 2"),
        (CLIP, {"feature_layer": (1, 2)}, r"feature_layer is \(1, 2\); give one layer"),
    ],
)
def test_what_no_model_has_is_refused(config, changes, says):
    with pytest.raises(ValueError, match=f"{type(config).__name__}.{says}"):
        dataclasses.replace(config, **changes)


def test_a_list_of_gin_becomes_a_tuple():
    assert dataclasses.replace(T5, mlp_activations=["relu"]) == T5 and hash(T5)


# What a config of T5Gemma says of its layers.

DECODER = StackSizes(emb_dim=32, num_heads=6, num_kv_heads=3, head_dim=4, mlp_dim=10, layers=7)
ENCODER = StackSizes(emb_dim=48, num_heads=8, num_kv_heads=2, head_dim=6, mlp_dim=12, layers=5)


def config(kind=T5GemmaConfig, **changes):
    names = "emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim"
    fields = dict(zip(names, DECODER, strict=False))
    fields |= {f"encoder_{name}": size for name, size in zip(names, ENCODER, strict=False)}
    fields |= {"vocab_size": 20, "num_decoder_layers": 7, "num_encoder_layers": 5}
    if kind is T5Gemma2Config:
        fields["encoder_emb_dim"] = 32
    return kind(**fields | changes)


def test_each_stack_has_its_own_sizes():
    assert (config().decoder, config().encoder) == (DECODER, ENCODER)


def test_local_layers_and_their_windows():
    """As in transformers 5: version 1 alternates, and version 2 has one global layer in six."""
    one, two = config(window=4), config(T5Gemma2Config)
    assert [one.is_local(layer) for layer in range(4)] == [True, False, True, False]
    assert [two.is_local(layer) for layer in range(12)] == 2 * [*[True] * 5, False]
    assert one.encoder_window == (4, 4)
    assert two.encoder_window == (255, 256)
    assert dataclasses.replace(two, window=5).encoder_window == (2, 2)
    assert (config().window, two.window) == (4096, 512)


def test_angles_of_rotary_positions():
    """theta ** (-2 i / 4), and in global layers of version 2 divided by a factor."""
    one, two = config(), config(T5Gemma2Config, rope_factor=8.0)
    for local in (True, False):
        assert one.rotary_rates(4, local) == pytest.approx([1, 0.01])
    assert two.rotary_rates(4, True) == pytest.approx([1, 0.01])
    assert two.rotary_rates(4, False) == pytest.approx([1 / 8, 0.001 / 8])
    assert two.rotary_rates(6, True) == pytest.approx([1, 10 ** (-4 / 3), 10 ** (-8 / 3)])
    assert one.rotary_rates(4, True).dtype == np.float32


def test_a_head_is_the_table_unless_it_is_another():
    assert config().head_is_table
    assert not config(logits_via_embedding=False).head_is_table
    assert not config(head_ids=(1, 19)).head_is_table


def test_bytes_of_a_cache():
    """Keys and values of 7 layers, 2 rows, 3 heads, 8 and 24 tokens, and 4 numbers of 4 bytes.

    Outputs and inputs are in one array. A mesh of 3 devices divides the heads.
    """
    model = T5Gemma(config(), axis_rules=partitioning.standard_logical_axis_rules())
    assert model.spare == 0
    assert model.cache_bytes(2, 8, 24) == 7 * 2 * 2 * 3 * (8 + 24) * 4 * 4
    wider = model.in_layout(least_width=3)  # two slots behind the last
    assert wider.cache_bytes(2, 8, 24) == 7 * 2 * 2 * 3 * (8 + 2 + 24) * 4 * 4
    mesh = {partitioning.DATA: 1, partitioning.MODEL: 3}
    assert model.cache_bytes(2, 8, 24, mesh) == 7 * 2 * 2 * (8 + 24) * 4 * 4


GROUPS, EVEN = "which does not divide {}; give a divisor", "give an even number"
ENCODERS = "encoder_num_heads 8"
DEPTH = "give layers, or 0 and the width of the target's encoder output"


@pytest.mark.parametrize(
    "kind, changes, says",
    [
        (T5GemmaConfig, {"num_kv_heads": 4}, f"is 4, {GROUPS.format('num_heads 6')}"),
        (
            T5Gemma2Config,
            {"encoder_num_kv_heads": 3},
            f"is 3, {GROUPS.format('encoder_num_heads 8')}",
        ),
        (T5GemmaConfig, {"head_dim": 5}, f"is 5; {EVEN}"),
        (T5GemmaConfig, {"encoder_head_dim": 7}, f"is 7; {EVEN}"),
        (T5GemmaConfig, {"num_encoder_layers": 0}, f"is 0 and encoded_dim is None; {DEPTH}"),
        (
            T5GemmaConfig,
            {"num_encoder_layers": 5, "encoded_dim": 48},
            f"is 5 and encoded_dim is 48; {DEPTH}",
        ),
        (T5GemmaConfig, {"head_ids": (1, 20)}, "goes up to 20; give ids below 20"),
        (
            T5GemmaConfig,
            {"pad_id": 3, "stop_ids": (1, 3)},
            "is 3, which is also one of stop_ids (1, 3); give another one",
        ),
        (T5Gemma2Config, {"attention_cap": 50.0}, "is 50.0, and version 2 has no cap; give None"),
        (
            T5Gemma2Config,
            {"encoder_emb_dim": 48},
            "is 48 and emb_dim 32, and both stacks share a token table; give one width",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(kind, changes, says):
    with pytest.raises(ValueError) as error:
        config(kind, **changes)
    assert str(error.value) == f"{kind.__name__}.{next(iter(changes))} {says}"
    config(num_encoder_layers=0, encoded_dim=48)
