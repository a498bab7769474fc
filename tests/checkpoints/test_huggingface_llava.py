"""LLaVA in Hugging Face's directories: pytest tests/checkpoints/test_huggingface_llava.py

The golden model was saved by transformers itself; see tests/golden/README.md.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoint_files import error_of

from specdec import checkpoints
from specdec.checkpoints import CheckpointError
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.tasks.pictures import PictureSettings

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
    """The arrays are not compared here; the sizes are those of LLaVA-1.5-7B."""
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
    """A LLaMA of 7B, and CLIP's ViT-B/32."""
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
        (
            {"text_config": {"model_type": "mistral"}},
            "model_type is 'mistral', and supported is 'l",
        ),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "supported is 'clip_vision_mod"),
        ({"vision_config": {"hidden_act": "gelu"}}, "hidden_act is 'gelu', and supported is 'quic"),
        ({"vision_feature_select_strategy": "full"}, "is 'full', and supported is 'default'; use"),
        ({"vision_feature_layer": [-2, -1]}, r"feature_layer is \[-2, -1\]; give one layer, an in"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu', and supported is 'gel"),
    ],
)
def test_another_model_is_refused_in_one_line(edited, parts, says):
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
