"""Parts of several families of models by hand, without a checkpoint: pytest tests/models"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models import families
from specdec.models.bases.transformer import BlockInputs
from specdec.models.gpt2.gpt2_checkpoints import Gpt2Checkpoints
from specdec.models.heads import HeadedTarget
from specdec.models.layers.products import STORED_KERNELS
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.llama.llama_checkpoints import LlamaCheckpoints
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.llava.llava_checkpoints import LlavaCheckpoints
from specdec.models.llava.llava_model import Llava
from specdec.models.opt.opt_checkpoints import OptCheckpoints
from specdec.models.placement.layouts import Layout
from specdec.models.sizes import kept_parts
from specdec.models.sizes.kept_parts import Trim
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.network import T5Attention
from specdec.models.t5.t5_checkpoints import T5Checkpoints
from specdec.models.t5gemma.t5gemma_checkpoints import T5GemmaCheckpoints
from specdec.models.t5gemma2.t5gemma2_checkpoints import T5Gemma2Checkpoints
from specdec.models.t5gemma2.t5gemma2_model import MergedAttention
from specdec.models.whisper import WhisperConfig
from specdec.models.whisper.whisper_checkpoints import WhisperCheckpoints
from specdec.models.whisper.whisper_model import SoundAttention

CLIP = ClipConfig(image_size=4, patch_size=2, emb_dim=8, num_heads=2, mlp_dim=12, num_layers=2)


def test_which_models_have_kernels_of_their_own():
    sizes = {"vocab_size": 9, "emb_dim": 4, "num_heads": 1, "head_dim": 4, "mlp_dim": 4}
    t5 = T5Target(T5Config(**sizes, num_encoder_layers=1, num_decoder_layers=1))
    assert t5.in_layout(joined=True).layout.joined
    assert t5.in_layout(fused="mosaic").layout.fused == "mosaic"
    for ways in ({"joined": True, "fused": "triton"}, {"fused": "triton", "storage": "out_in"}):
        with pytest.raises(ValueError, match="give at most one of the two"):
            t5.in_layout(**ways)
    llama = Llama(LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1))
    for way in ({"joined": True}, {"fused": "triton"}):
        with pytest.raises(ValueError, match="lacks such kernels"):
            llama.in_layout(**way)


def test_a_cache_of_prompts_has_room_for_them_and_for_filled_calls():
    """Five slots of outputs, six of a prompt but for its last token, and two that fill calls up."""
    sizes = {"vocab_size": 9, "emb_dim": 4, "num_heads": 2, "head_dim": 6, "mlp_dim": 4}
    config = LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1)
    llama = Llama(config, layout=Layout(least_width=3))
    inputs = jax.ShapeDtypeStruct([2, 7], "int32")
    read = functools.partial(llama.prefill, capacity=5)
    cache = jax.eval_shape(read, llama.parameter_shapes(), inputs)
    assert (cache.capacity, cache.room, cache.spare) == (5, 6, 2)
    assert [x.shape for x in (*cache.keys, *cache.values)] == [(2, 1, 5 + 6 + 2, 6)] * 2
    token, empty = llama.example()
    assert token.shape == (1, 1) and (empty.capacity, empty.room, empty.spare) == (1, 0, 2)
    assert empty.base.tolist() == [0] and empty.keys[0].shape == (1, 1, 1 + 2, 6)


def test_padding_has_the_row_of_the_first_token():
    sizes = {"vocab_size": 3, "emb_dim": 4, "num_heads": 1, "head_dim": 4, "mlp_dim": 4}
    llama = Llama(LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=1))
    table = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    params = llama.init(jax.random.key(0)) | {"token_embedder": {"embedding": table}}
    found = llama.apply(params, jnp.array([[-1, 0, 1, 2]]), method="embed")
    np.testing.assert_array_equal(found, table[None, [0, 0, 1, 2]])


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
    config = WhisperConfig(5, 12, 3, 8, 1, 1)
    layer = SoundAttention(config, config.encoder, STORED_KERNELS)
    x = np.random.default_rng(0).standard_normal([2, 5, 12]).astype(np.float32)

    def shapes(layer, x):
        return layer.over_itself(x, None, None)

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


RECORD = {
    "vocab_size": 9,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    "record, expected",
    [
        ({}, {"num_kv_heads": 3, "head_dim": 8}),
        ({"num_attention_heads": 1}, {"num_kv_heads": 1, "head_dim": 24}),
        ({"num_key_value_heads": 1, "head_dim": 4}, {"num_kv_heads": 1, "head_dim": 4}),
        ({"rope_theta": 5.0}, {"rope_theta": 5.0, "rope_scaling": "default"}),
        (
            {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}},
            {"rope_theta": 7.0},
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": "linear", "rope_factor": 2.0, "rope_low_factor": 1.0},
        ),
        (
            {"rope_scaling": LLAMA3},
            {
                "rope_scaling": "llama3",
                "rope_factor": 8.0,
                "rope_low_factor": 1.0,
                "rope_high_factor": 4.0,
                "rope_context": 512,
            },
        ),
    ],
)
def test_a_llama_of_a_record(record, expected):
    config = LlamaCheckpoints().described(RECORD | record)
    assert {name: getattr(config, name) for name in expected} == expected
    written = LlamaCheckpoints().to_record(config)
    assert LlamaCheckpoints().described(written) == config
    scaling = record.get("rope_scaling")
    assert written["rope_scaling"] == (
        scaling
        and {"rope_type": scaling.get("type", "llama3")}
        | {name: value for name, value in scaling.items() if name != "type"}
    )


def test_wavelengths_of_lengthened_contexts():
    """As transformers computes them: long waves of "llama3" are longer, and short ones stay."""
    sizes = {"vocab_size": 9, "emb_dim": 8, "num_heads": 1, "num_kv_heads": 1, "mlp_dim": 4}
    plain = LlamaConfig(**sizes, head_dim=16, num_decoder_layers=1, rope_theta=100.0)
    rates = 100.0 ** (-np.arange(0, 16, 2) / 16)
    # Rounded to float32.
    np.testing.assert_allclose(plain.rotary_rates(), rates, rtol=1e-6)
    linear = dataclasses.replace(plain, rope_scaling="linear", rope_factor=4.0)
    np.testing.assert_allclose(linear.rotary_rates(), rates / 4, rtol=1e-6)
    ways = {"rope_factor": 8.0, "rope_low_factor": 1.0, "rope_high_factor": 4.0}
    config = dataclasses.replace(plain, rope_scaling="llama3", rope_context=64.0, **ways)
    expected = []
    for rate in rates:
        length = 2 * np.pi / rate
        smooth = (64 / length - 1) / (4 - 1)
        if length > 64:
            expected.append(rate / 8)
        elif length < 64 / 4:
            expected.append(rate)
        else:
            expected.append((1 - smooth) * rate / 8 + smooth * rate)
    assert expected[0] == rates[0] and expected[-1] == rates[-1] / 8
    assert any(rate / 8 < x < rate for rate, x in zip(rates, expected, strict=True))
    np.testing.assert_allclose(config.rotary_rates(), expected, rtol=1e-6)


def test_a_gpt2_of_a_record():
    record = {"vocab_size": 9, "n_embd": 6, "n_head": 1, "n_layer": 2}
    one = Gpt2Checkpoints().described(record)
    assert (one.num_heads, one.num_kv_heads, one.head_dim, one.mlp_dim) == (1, 1, 6, 24)
    two = Gpt2Checkpoints().described(record | {"n_head": 2, "n_inner": 5})
    assert (two.num_heads, two.num_kv_heads, two.head_dim, two.mlp_dim) == (2, 2, 3, 5)


def test_one_place_of_a_target_with_heads():
    """Place 0 is the target's own state, and place n is that of head n - 1."""

    def ahead(params, states, only=None):
        every = states[:, :, None] * jnp.array([10.0, 100.0])[None, None, :, None]
        return every if only is None else every[:, :, only][:, :, None]

    model: Any = types.SimpleNamespace(heads=types.SimpleNamespace(ahead=ahead))
    states = jnp.arange(1.0, 7.0).reshape(1, 3, 2)
    for only, factors in ((None, [1, 10, 100]), (0, [1]), (1, [10]), (2, [100])):
        place = None if only is None else jnp.int32(only)
        found = HeadedTarget.ahead(model, {"heads": ()}, states, place)
        np.testing.assert_array_equal(found, np.stack([x * states for x in factors], axis=2))


def test_queries_begin_smaller_than_keys():
    """By the root of a head's size, so that attention needs no scale of its own (T5, section 2)."""
    sizes = {"vocab_size": 9, "emb_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 4}
    config = T5Config(**sizes, num_encoder_layers=1, num_decoder_layers=1)
    layer = T5Attention(config, config.decoder, STORED_KERNELS)

    def all_three(layer, x):
        return layer.query(x), layer.key(x), layer.value(x)

    made = jax.jit(functools.partial(layer.init, method=all_three))
    params = made(jax.random.key(0), jnp.zeros([1, 1, 64]))["params"]
    spread = {name: np.std(params[name]["kernel"].unbox()) for name in ("query", "key", "value")}
    for name, expected in (("query", 1 / 32), ("key", 1 / 8), ("value", 1 / 8)):
        assert 0.95 < spread[name] / expected < 1.05  # of 4,096 numbers


FORMATS = {
    "t5": T5Checkpoints,
    "t5_draft": T5Checkpoints,
    "t5gemma": T5GemmaCheckpoints,
    "t5gemma2": T5Gemma2Checkpoints,
    "whisper": WhisperCheckpoints,
    "llama": LlamaCheckpoints,
    "llava": LlavaCheckpoints,
    "opt": OptCheckpoints,
    "gpt2": Gpt2Checkpoints,
}


@pytest.mark.parametrize("name", [*FORMATS, "heads"])
def test_the_parts_of_a_family(name):
    family = families.named(name)
    assert family.name == name
    assert type(family.huggingface) is FORMATS.get(name, type(None))
    encoders = {"t5", "t5_draft", "t5gemma", "t5gemma2", "whisper"}
    if name != "heads":
        assert family.trimming and family.trimming.has_encoder == (name in encoders)
    assert (family.growth is not None) == (name in ("t5", "t5_draft", "heads"))
    assert family.presets == ("t5" if name in ("t5_draft", "heads") else name)
    own = families._decoder("own", LlamaConfig, Llama, LlamaCheckpoints())
    trimming, huggingface = own.trimming, own.huggingface
    assert not trimming.has_encoder and isinstance(huggingface, LlamaCheckpoints)


def test_a_model_is_resized_by_growth_or_by_trimming():
    sizes = {"vocab_size": 9, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 8}
    config = T5Config(**sizes, num_encoder_layers=1, num_decoder_layers=2)
    larger = dataclasses.replace(config, emb_dim=12, vocab_size=99)
    # A vocabulary is no size of a preset.
    assert families.resized(config, larger) == dataclasses.replace(config, emb_dim=12)
    smaller = families.resized(config, Trim((0,)))
    assert (smaller.num_encoder_layers, smaller.num_decoder_layers) == (1, 1)
    with pytest.raises(ValueError, match="emb_dim is 8 and would become 4; a model only grows"):
        families.resized(config, dataclasses.replace(config, emb_dim=4))
    llama = LlamaConfig(**sizes, num_kv_heads=1, num_decoder_layers=2)
    assert families.resized(llama, Trim((1,))).num_decoder_layers == 1
    with pytest.raises(ValueError, match="'llama' do not grow; give one of t5, t5_draft, heads"):
        families.resized(llama, llama)


def test_kinds_of_layers_in_a_record():
    both, kinds = (
        {"s": "sliding_attention", "f": "full_attention"},
        T5GemmaCheckpoints().layer_types,
    )
    assert kinds(5, 2) == [both[x] for x in "sfsfs"] and kinds(4, 3) == [both[x] for x in "ssfs"]
    assert kinds(0, 2) == [] and len(kinds(1000, 2)) == 1000
    for layers in (-1, 1001):
        with pytest.raises(ValueError, match="num_hidden_layers"):
            kinds(layers, 2)


@pytest.mark.parametrize("pad_id, found", [(0, 0), (1, -1), (2, -1), (3, 3)])
def test_an_id_that_begins_or_ends_texts_is_no_padding(pad_id, found):
    """A record of LLaVA leaves out that 1 begins texts and 2 ends them."""
    text = {"vocab_size": 32_064, "pad_token_id": pad_id}
    record = {"text_config": text, "vision_config": {}}
    assert LlavaCheckpoints().described(record).pad_id == found


def test_a_record_of_a_t5gemma_2_without_wavelengths_has_those_of_gemma_3():
    found = T5Gemma2Checkpoints().stack("encoder", {"rope_parameters": None})
    names = ("rope_theta", "local_rope_theta", "rope_factor", "pattern")
    assert [found[name] for name in names] == [1_000_000, 10_000, 1, 6]


def test_samples_of_a_text_share_its_keys_in_merged_attention():
    seen = []

    class Cache(types.SimpleNamespace):
        def write(self, layer, keys, values):
            assert (layer, keys, values) == (1, "k", "v")
            return Cache(**vars(self))

    def over_both(y, positions, outputs, inputs):
        seen.append((y, positions, outputs, inputs))
        return y

    attention: Any = types.SimpleNamespace(
        keys_values=lambda y, positions: ("k", "v"), over_both=over_both
    )
    cross = np.arange(2.0).reshape(2, 1, 1, 1)
    cache: Any = Cache(keys=[0, "own keys"], values=[0, "own values"])
    cache.cross_keys, cache.cross_values = [None, cross], [None, cross + 5]
    x, mask = np.zeros([4, 1, 2], np.float32), np.array([[[[0.0]]], [[[1.0]]]])
    block = BlockInputs(*cast(Any, ("positions", "mask", mask)))
    over_cache = MergedAttention.over_cache.__wrapped__  # type: ignore[attr-defined]
    y, after = over_cache(attention, x + 1, cache, 1, block)
    np.testing.assert_array_equal(y, np.full([4, 1, 2], 1))
    ((normed, positions, outputs, inputs),) = seen
    assert (positions, outputs[:3]) == ("positions", ("own keys", "own values", "mask"))
    np.testing.assert_array_equal(normed, x + 1)
    keys, values, own = (np.asarray(one)[:, 0, 0, 0].tolist() for one in inputs[:3])
    assert (keys, values, own) == ([0, 0, 1, 1], [5, 5, 6, 6], [0, 0, 1, 1])
    assert inputs.transposed and isinstance(after, Cache)


@pytest.mark.parametrize(
    "given, of, found",
    [
        ("first:2", 6, (0, 1)),
        ("last:2", 6, (4, 5)),
        ("spread:1", 6, (0,)),
        ("spread:2", 6, (0, 5)),
        ("spread:3", 6, (0, 2, 5)),
        ("spread:6", 6, (0, 1, 2, 3, 4, 5)),
        ("spread:4", 24, (0, 7, 15, 23)),
        ("0, 3,5", 6, (0, 3, 5)),
        ("2", 6, (2,)),
        *((x, 6, None) for x in ("first:0", "last:7", "first", "middle:2", "a:1", "-1", "", "²")),
        *((x, 6, None) for x in ("3,0", "0,0", "0,6", "0;3")),
    ],
)
def test_numbers_of_layers_in_an_argument(given, of, found):
    if found is not None:
        assert kept_parts.layers("--layers", given, of) == found
        return
    with pytest.raises(ValueError, match="--layers is .* and the model has 6 layers; give first:N"):
        kept_parts.layers("--layers", given, of)


@pytest.mark.parametrize("field", ["decoder_layers", "encoder_layers", "head_ids"])
def test_kept_parts_are_in_ascending_order(field):
    assert getattr(Trim(**{field: (0, 3)}), field) == (0, 3)
    for numbers in ((3, 0), (0, 0), (-1, 2), ()):
        with pytest.raises(ValueError, match=f"Trim.{field} is .*; give ascending numbers"):
            Trim(**{field: numbers})
