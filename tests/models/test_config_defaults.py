"""The fields of configs that need not be given: pytest tests/models/test_config_defaults.py

They are those of the first published checkpoints of a family, or switch something off.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models.gpt2 import Gpt2Config
from specdec.models.layers.products import STORED
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.llava.llava_model import Llava
from specdec.models.opt import OptConfig
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.t5_layers import Attention
from specdec.models.t5gemma import T5GemmaConfig
from specdec.models.t5gemma2 import T5Gemma2Config
from specdec.models.whisper import WhisperConfig
from specdec.models.whisper.whisper_network import WhisperAttention

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


def test_which_models_have_kernels_of_their_own():
    """T5 has joined and fused ones, and takes one of both with kernels as in checkpoints."""
    sizes = {"vocab_size": 9, "emb_dim": 4, "num_heads": 1, "head_dim": 4, "mlp_dim": 4}
    t5 = T5Target(T5Config(**sizes, num_encoder_layers=1, num_decoder_layers=1))
    assert dataclasses.replace(t5, joined=True).joined
    assert dataclasses.replace(t5, fused="mosaic").fused == "mosaic"
    for ways in ({"joined": True, "fused": "triton"}, {"fused": "triton", "layout": "out_in"}):
        with pytest.raises(ValueError, match="give one of both at most"):
            dataclasses.replace(t5, **ways)
    llama = Llama(LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1))
    for way in ({"joined": True}, {"fused": "triton"}):
        with pytest.raises(ValueError, match="and it has no such kernels"):
            dataclasses.replace(llama, **way)


def test_a_cache_of_prompts_has_room_for_them_and_for_filled_calls():
    """Five slots of outputs, six of a prompt but for its last token, and two that fill calls up."""
    sizes = {"vocab_size": 9, "emb_dim": 4, "num_heads": 2, "head_dim": 6, "mlp_dim": 4}
    llama = Llama(LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1), least_width=3)
    inputs = jax.ShapeDtypeStruct([2, 7], "int32")
    read = functools.partial(llama.prefill, capacity=5)
    cache = jax.eval_shape(read, llama.parameter_shapes(), inputs)
    assert (cache.capacity, cache.room, cache.spare) == (5, 6, 2)
    assert [x.shape for x in (*cache.keys, *cache.values)] == [(2, 1, 5 + 6 + 2, 6)] * 2
    token, empty = llama.example()
    assert token.shape == (1, 1) and (empty.capacity, empty.room, empty.spare) == (1, 0, 2)
    assert empty.base.tolist() == [0] and empty.keys[0].shape == (1, 1, 1 + 2, 6)


def test_a_llava_has_room_for_one_picture_or_more():
    sizes = {"vocab_size": 9, "emb_dim": 4, "num_heads": 1, "head_dim": 4, "mlp_dim": 4}
    config = LlavaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1, vision=CLIP, image_id=8)
    model = Llava(config)
    assert [model.with_room(files).pictures for files in (0, 1, 3)] == [1, 1, 3]
    shapes = model.with_room(3).inputs_shape(2, 5)
    assert {name: x.shape for name, x in shapes.items()} == {
        "tokens": (2, 5),
        "pixels": (2, 3, 3, 4, 4),
    }


def test_attention_of_a_whisper_in_numpy():
    """Of each position over all, with a bias of queries, values and outputs, and none of keys."""
    config = WhisperConfig(5, 12, 3, 8, 1, 1)
    layer = WhisperAttention(config, STORED, STORED)
    x = np.random.default_rng(0).standard_normal([2, 5, 12]).astype(np.float32)

    def shapes(layer, x):
        return layer.over_itself(x)

    names = jax.eval_shape(functools.partial(layer.init, method=shapes), jax.random.key(0), x)
    draw = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape) / 3, jnp.float32), names
    )
    found = jax.jit(functools.partial(layer.apply, method=shapes))(params, x)
    own = {
        name: {part: np.asarray(leaf.unbox(), np.float64) for part, leaf in one.items()}
        for name, one in params["params"].items()
    }
    assert "bias" not in own["key"]

    def product(name, x):
        return x @ own[name]["kernel"] + own[name].get("bias", 0)

    query, key, value = (
        product(name, x.astype(np.float64)).reshape(2, 5, 3, 4)
        for name in ("query", "key", "value")
    )
    scores = np.einsum("bthd,bshd->bhts", query, key) / np.sqrt(4)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhts,bshd->bthd", weights, value).reshape(2, 5, 12)
    # 6e-7 of numbers up to 2 on an AMD EPYC with AVX2.
    np.testing.assert_allclose(found, product("out", mixed), rtol=0, atol=1e-5)


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


def test_queries_begin_smaller_than_keys():
    """By the root of a head's size, so that attention needs no scale of its own (T5, section 2)."""
    layer = Attention(num_heads=4, head_dim=16, emb_dim=64, dtype="float32")

    def all_three(layer, x):
        return layer.query(x), layer.key(x), layer.value(x)

    made = jax.jit(functools.partial(layer.init, method=all_three))
    params = made(jax.random.key(0), jnp.zeros([1, 1, 64]))["params"]
    spread = {name: np.std(params[name]["kernel"].unbox()) for name in ("query", "key", "value")}
    for name, expected in (("query", 1 / 32), ("key", 1 / 8), ("value", 1 / 8)):
        assert 0.95 < spread[name] / expected < 1.05  # of 4,096 numbers
