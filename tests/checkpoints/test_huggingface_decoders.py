"""Checkpoints of newer families: pytest tests/checkpoints/test_huggingface_decoders.py

The golden models were saved and run by transformers itself; see tests/golden/README.md.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_files import error_of
from support import GOLDEN, teacher_forced
from tolerances import LOGITS

from specdec import autoregressive_decode, checkpoints, row_keys
from specdec.checkpoints import CheckpointError, huggingface_files
from specdec.models.bases import prompts
from specdec.models.families import model_of
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.sampling import Greedy
from specdec.tasks.pictures import PictureSettings

MODELS = (
    "hf_llama",
    "hf_llama_groups",
    "hf_llama_linear",
    "hf_llama3",
    "hf_opt",
    "hf_opt_350m",
    "hf_gpt2",
    "hf_t5gemma",
    "hf_t5gemma_unequal",
    "hf_t5gemma2",
    "hf_t5gemma2_window",
)
PICTURES = ("vision_tower", "multi_modal_projector")  # parts of a T5Gemma 2 that are not read
# Own bfloat16 logits of transformers differ from its float32 ones by up to 0.74 (of 7.2; the gated
# MLP of a LLaMA amplifies), and by up to 1.04 with other weights. Ours by up to 0.70.
BFLOAT16 = 1.0

OFTEN = ("hf_llama", "hf_opt", "hf_gpt2", "hf_t5gemma2")  # one of each family
CI = ("hf_llama3", "hf_opt_350m", "hf_t5gemma_unequal")  # they differ most from those of OFTEN
MARKS = dict.fromkeys(OFTEN, ()) | dict.fromkeys(CI, pytest.mark.ci)
some_models = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in MODELS]
)
slow_but_one = pytest.mark.parametrize(
    "name", [MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])]
)


def opened(directory, **changes):
    """Returns the model of a directory and its float32 parameters."""
    model = model_of(dataclasses.replace(checkpoints.config_from(directory), **changes))
    params = checkpoints.load(directory, config=model.config)
    # On the host: XLA's code for SSE4.2 converts no float16, which OPT's files have.
    return model, jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float32)), params)


def golden_of(name, model):
    """Returns the golden arrays, with prompts padded as the model wants."""
    golden = dict(np.load(GOLDEN / name / "golden.npz"))
    golden["prompts"] = np.where(golden["prompts"] < 0, model.pad_id, golden["prompts"])
    return golden


def fed(model, prompts, outputs):
    """Returns [B, T], the start token and all but the last of the outputs."""
    return np.concatenate([model.start(prompts)[:, None], outputs[:, :-1]], axis=1)


@slow_but_one
def test_prompts_that_are_read_in_blocks_give_the_same(name, monkeypatch):
    monkeypatch.setattr(prompts, "BLOCK", 8)  # prompts have up to 26 tokens
    test_logits_and_greedy_ids_are_those_of_transformers(name)


@some_models
def test_logits_and_greedy_ids_are_those_of_transformers(name):
    model, params = opened(GOLDEN / name)
    golden = golden_of(name, model)
    inputs = golden["prompts"]
    logits = teacher_forced(model, params, inputs, fed(model, inputs, golden["outputs"]))
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=LOGITS)

    output = autoregressive_decode(
        params,
        row_keys(0, jnp.arange(len(inputs))),
        inputs,
        target=model,
        sampling=Greedy(),
        max_length=golden["greedy"].shape[1],
        eos_id=model.stop_ids,
    )
    lengths = (golden["greedy"] >= 0).sum(axis=1)
    np.testing.assert_array_equal(output.length, lengths)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(output.tokens[row, :length], golden["greedy"][row, :length])


@slow_but_one
def test_logits_in_bfloat16(name):
    model, params = opened(GOLDEN / name, dtype="bfloat16")
    golden = golden_of(name, model)
    inputs = golden["prompts"]
    logits = teacher_forced(model, params, inputs, fed(model, inputs, golden["outputs"]))
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=BFLOAT16)


@pytest.mark.parametrize(
    "name",
    [
        *("hf_llava", "hf_whisper"),
        *(pytest.param(name, marks=[pytest.mark.ci] * (name not in OFTEN)) for name in MODELS),
    ],
)
def test_what_is_written_is_what_was_read(name, tmp_path):
    """Bit for bit, a LLaVA's tower by the names of transformers 4, which 5 reads too.

    That transformers loads it was seen by hand.
    """
    config = checkpoints.config_from(GOLDEN / name)
    params = checkpoints.load(GOLDEN / name, config=config)
    checkpoints.save(tmp_path / "out", params, config=config, format="huggingface")
    written, theirs = (huggingface_files.read(path) for path in (tmp_path / "out", GOLDEN / name))
    if name == "hf_llava":
        tower = "vision_tower.", "vision_tower.vision_model."
        theirs = {key.replace(*tower): array for key, array in theirs.items()}
    else:
        theirs = {key: x for key, x in theirs.items() if not any(y in key for y in PICTURES)}
    assert written.keys() == theirs.keys()
    for key, array in theirs.items():
        assert written[key].dtype == array.dtype
        np.testing.assert_array_equal(written[key], array)
    assert checkpoints.config_from(tmp_path / "out") == config


@pytest.mark.parametrize(
    "name", ["hf_llava", "hf_whisper", *(name for name in MODELS if "t5gemma2" not in name)]
)
def test_transformers_4_describes_the_same(name, tmp_path):
    shutil.copytree(GOLDEN / name, tmp_path / name)
    shutil.copy(GOLDEN / name / "config_4.json", tmp_path / name / "config.json")
    assert checkpoints.config_from(tmp_path / name) == checkpoints.config_from(GOLDEN / name)


@pytest.mark.parametrize(
    "name, prefix, unused",
    [
        ("hf_gpt2", "transformer.", ["h.0.attn.bias", "h.1.attn.masked_bias"]),
        ("hf_t5gemma2", "model.", ["decoder.embed_tokens.weight"]),
        ("hf_opt", "model.", ["decoder.version"]),
        ("hf_llama_groups", "model.", ["layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_older_files_have_other_names(edited, name, prefix, unused):
    """A model without its output layer has no prefix, and buffers were saved once."""
    buffers = {f"{prefix}{one}": np.zeros([1, 1], np.float32) for one in unused}
    for rename in (str, lambda key: key.removeprefix(prefix)):
        directory = edited(name, rename, buffers)
        assert checkpoints.config_from(directory) == checkpoints.config_from(GOLDEN / name)
        found = checkpoints.load(directory, config=checkpoints.config_from(directory))
        expected = checkpoints.load(GOLDEN / name, config=checkpoints.config_from(GOLDEN / name))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_text_part_may_have_a_name_of_its_own(edited):
    def rename(key):
        parts = ("embed_tokens", "layers", "norm")
        inside = key.startswith(tuple(f"model.encoder.{part}" for part in parts))
        return key.replace("model.encoder.", "model.encoder.text_model.") if inside else key

    directory = edited("hf_t5gemma2", rename)
    config = checkpoints.config_from(directory)
    assert config == checkpoints.config_from(GOLDEN / "hf_t5gemma2")
    found = checkpoints.load(directory, config=config)
    expected = checkpoints.load(GOLDEN / "hf_t5gemma2", config=config)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_records_of_a_t5gemma_2(edited):
    config = checkpoints.config_from(GOLDEN / "hf_t5gemma2")
    assert (config.rope_theta, config.local_rope_theta, config.rope_factor) == (1e6, 1e4, 8.0)
    assert (config.pattern, config.end_of_image_id, config.attention_cap) == (2, 59, None)
    record = json.loads((GOLDEN / "hf_t5gemma2" / "config.json").read_text())
    for change, says in (
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, and supported is None"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "decoder has the rope_type 'yarn' in global"),
        ({"sliding_window": 9}, "sliding_window is 4 in the encoder and 9 in the decoder"),
    ):
        directory = edited("hf_t5gemma2", decoder=record["decoder"] | change)
        with pytest.raises(CheckpointError, match=says):
            checkpoints.config_from(directory)


def test_an_output_layer_of_its_own(edited, tmp_path):
    head = np.arange(61 * 16, dtype=np.float32).reshape(61, 16)
    for tied in (False, True):
        directory = edited("hf_gpt2", more={"lm_head.weight": head}, tie_word_embeddings=tied)
        config = checkpoints.config_from(directory)
        assert not config.logits_via_embedding
        params = checkpoints.load(directory, config=config)
        np.testing.assert_array_equal(params["decoder"]["logits_dense"]["kernel"], head.T)
    checkpoints.save(tmp_path / "out", params, config=config, format="huggingface")
    written = huggingface_files.read(tmp_path / "out")
    np.testing.assert_array_equal(written["lm_head.weight"], head)


def test_an_array_that_is_not_three_is_a_misfit(edited):
    name = "transformer.h.0.attn.c_attn.bias"
    directory = edited("hf_gpt2", more={name: np.zeros(47, np.float32)})
    with pytest.raises(CheckpointError, match="missing .*unexpected .*c_attn.bias") as raised:
        checkpoints.load(directory, config=checkpoints.config_from(directory))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("hf_llama", {"attention_bias": True}, "attention_bias is True, and supported is False"),
        ("hf_llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', and supported is 'silu'"),
        ("hf_llama", {"rope_parameters": {"rope_type": "yarn"}}, "of the kind 'yarn'"),
        ("hf_llama3", {"rope_parameters": {"rope_type": "llama3"}}, "rope_scaling lacks factor"),
        ("hf_llama", {"hidden_size": None}, "hidden_size missing; copy config.json again"),
        ("hf_opt", {"enable_bias": False}, "enable_bias is False, and supported is True"),
        ("hf_opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is True"),
        ("hf_opt", {"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ("hf_gpt2", {"activation_function": "gelu"}, "supported is 'gelu_new'"),
        ("hf_gpt2", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("hf_gpt2", {"scale_attn_by_inverse_layer_idx": True}, "supported is False"),
        ("hf_gpt2", {"quantization_config": {"quant_method": "gptq"}}, "is quantised .*gptq"),
        ("hf_gpt2", {"n_head": 5}, "does not fit|n_head"),
        ("hf_t5gemma", {"encoder": None}, "encoder missing; copy config.json again"),
        ("hf_t5gemma2", {"decoder": None}, "decoder missing; copy config.json again"),
    ],
)
def test_another_model_is_refused_in_one_line(edited, name, changes, says):
    directory = edited(name, **changes)
    said = error_of(lambda: checkpoints.load(directory, config=checkpoints.config_from(directory)))
    assert re.search(says, said)


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("hf_gpt2", {"num_kv_heads": 2}, "num_kv_heads is 2 and head_dim 4, and with 4 heads of"),
        ("hf_opt", {"head_dim": 8}, "head_dim 8, .* transformers has 4 and 4; choose another"),
        ("hf_opt", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
    ],
)
def test_what_transformers_cannot_describe_is_refused(name, changes, says, tmp_path):
    config = dataclasses.replace(checkpoints.config_from(GOLDEN / name), **changes)
    shapes = model_of(config).parameter_shapes()
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with pytest.raises(CheckpointError, match=says):
        checkpoints.save(tmp_path / "out", params, config=config, format="huggingface")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "ids, pad_id, stop_ids",
    [
        ({"pad_token_id": 0}, 0, (2,)),
        ({}, -1, (2,)),
        ({"pad_token_id": 2}, -1, (2,)),  # prompts may hold what ends a text,
        ({"pad_token_id": 1}, -1, (2,)),  # and what begins one
        ({"pad_token_id": 3, "eos_token_id": [2, 3]}, -1, (2, 3)),
        ({"pad_token_id": 5, "eos_token_id": [2, 3]}, 5, (2, 3)),
    ],
)
def test_a_record_of_the_sizes_alone_has_the_defaults_of_a_gpt2(edited, ids, pad_id, stop_ids):
    given = {"n_inner": None, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = checkpoints.config_from(edited("hf_gpt2", **given | ids))
    assert (config.emb_dim, config.mlp_dim) == (16, 64)
    assert (config.pad_id, config.stop_ids) == (pad_id, stop_ids)


# LLaVA.

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden" / "hf_llava"


def as_transformers_4_saves(name: str) -> str:
    return name.replace("vision_tower.", "vision_tower.vision_model.")


def as_modules_are_called(name: str) -> str:
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    return f"model.{name.replace('language_model.model.', 'language_model.')}"


@pytest.mark.parametrize("rename", [as_transformers_4_saves, as_modules_are_called])
def test_other_names_of_the_same_arrays(edited, rename):
    directory, config = edited("hf_llava", rename), checkpoints.config_from(FOLDER)
    assert checkpoints.config_from(directory) == config
    found, expected = (checkpoints.load(one, config=config) for one in (directory, FOLDER))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_released_record_leaves_out_the_defaults(edited):
    directory = edited("hf_llava")
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    vision = {
        **{"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336},
        **{"intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24},
        **{"patch_size": 14, "projection_dim": 768, "vocab_size": 32_000},
    }
    record = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": 32_000,
        "pad_token_id": 32_001,
        "text_config": text | {"vocab_size": 32_064},
        "tie_word_embeddings": False,
        "vision_config": vision,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    (directory / "config.json").write_text(json.dumps(record))
    found = checkpoints.config_from(directory)
    assert isinstance(found, LlavaConfig)
    assert (found.emb_dim, found.mlp_dim, found.num_heads, found.head_dim) == (4096, 11008, 32, 128)
    assert (found.num_decoder_layers, found.num_kv_heads, found.vocab_size) == (32, 32, 32_064)
    assert (found.pad_id, found.stop_ids, found.image_id) == (32_001, (2,), 32_000)
    assert (found.layer_norm_epsilon, found.vision.num_patches) == (1e-5, 576)


def test_a_record_of_the_kinds_alone_is_that_of_transformers_defaults(edited):
    directory = edited("hf_llava")
    text = {"model_type": "llama", "vocab_size": 32_064}  # which has to hold the id of pictures
    parts = {"text_config": text, "vision_config": {}}
    (directory / "config.json").write_text(json.dumps({"model_type": "llava"} | parts))
    found = checkpoints.config_from(directory)
    assert isinstance(found, LlavaConfig)
    assert found.vision == ClipConfig(224, 32, 768, 12, 3072, 12, feature_layer=-2)
    assert (found.vision.layer_norm_epsilon, found.layer_norm_epsilon) == (1e-5, 1e-6)
    sizes = found.emb_dim, found.num_heads, found.mlp_dim, found.num_decoder_layers
    assert sizes == (4096, 32, 11_008, 32) and found.image_id == 32_000


@pytest.mark.parametrize(
    "parts, says",
    [
        ({"text_config": None}, "text_config missing; copy config.json again"),
        ({"text_config": {"model_type": "mistral"}}, "model_type is 'mistral', and supported is '"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "supported is 'clip_vision_mod"),
        ({"vision_config": {"hidden_act": "gelu"}}, "hidden_act is 'gelu', and supported is 'quic"),
        ({"vision_feature_select_strategy": "full"}, "is 'full', and supported is 'default'; use"),
        ({"vision_feature_layer": [-2, -1]}, r"feature_layer is \[-2, -1\]; give one layer, an in"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu', and supported is 'gel"),
    ],
)
def test_another_llava_is_refused_in_one_line(edited, parts, says):
    record = json.loads((FOLDER / "config.json").read_text())
    merged = {k: record[k] | v if isinstance(v, dict) else v for k, v in parts.items()}
    assert re.search(says, error_of(checkpoints.config_from, edited("hf_llava", **merged)))


def test_settings_of_pictures_are_read_and_kept(tmp_path):
    expected = PictureSettings(size=(28,), crop=(28, 28))
    assert checkpoints.picture_settings_from(FOLDER) == expected
    assert checkpoints.picture_settings_from(ROOT / "tests" / "golden" / "hf_llama") is None
    ours = Path(shutil.copytree(FOLDER, tmp_path / "theirs"))
    shutil.copy(ROOT / "tests/golden/prompts/llama2/tokenizer.model", ours)
    config = checkpoints.config_from(ours)
    params, vocabulary = checkpoints.load(ours), checkpoints.vocabulary_from(ours)
    checkpoints.save(tmp_path / "ours", params, config=config, vocabulary=vocabulary)
    assert checkpoints.picture_settings_from(tmp_path / "ours") == expected
    text = (FOLDER / "preprocessor_config.json").read_text()
    (tmp_path / "ours/preprocessor_config.json").unlink()
    file = tmp_path / "ours/processor_config.json"
    file.write_text(json.dumps({"patch_size": 14}))  # by transformers 4
    assert checkpoints.picture_settings_from(tmp_path / "ours") is None
    file.write_text(json.dumps({"image_processor": json.loads(text)}))  # by transformers 5
    assert checkpoints.picture_settings_from(tmp_path / "ours") == expected
    file.write_text(json.dumps({"image_processor": {"do_pad": True}}))
    with pytest.raises(CheckpointError, match="processor_config.json: do_pad is True, and suppor"):
        checkpoints.picture_settings_from(tmp_path / "ours")
