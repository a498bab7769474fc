"""Settings in a checkpoint's files: pytest tests/checkpoints/test_generation_settings.py"""

from __future__ import annotations

import contextlib
import json

import pytest

from specdec.checkpoints import CheckpointError
from specdec.checkpoints.generation import changes, start_of
from specdec.checkpoints.generation import read as settings_of


def test_null_in_the_settings_of_our_own_checkpoint_is_no_setting(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": null, "bos_token_id": 5}')
    assert list(settings_of(tmp_path)) == ["bos_token_id"]
    assert start_of(settings_of(tmp_path)) == 5


@pytest.mark.parametrize(
    "name, value, is_one",
    [
        *(("use_cache", False, False), ("top_k", 0, False), ("top_k", 5, True)),
        *((name, 0, False) for name in ("num_beams", "num_beam_groups", "min_length")),
        *(("min_length", 1, False), ("unknown", 1, True)),
    ],
)
def test_settings_that_change_something(name, value, is_one):
    assert changes(name, value) == is_one


# What transformers takes where a file says nothing.
DEFAULTS = {
    **dict.fromkeys(("do_sample", "early_stopping", "return_timestamps", "token_healing"), False),
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty"), 1.0),
    **dict.fromkeys(("length_penalty", "encoder_repetition_penalty", "guidance_scale"), 1.0),
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("penalty_alpha", "no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    "encoder_no_repeat_ngram_size": 0,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_changes_nothing(name):
    assert not changes(name, DEFAULTS[name]) and changes(name, 7)


@pytest.mark.parametrize(
    "settings",
    [{"decoder_start_token_id": True}, {"eos_token_id": []}, {"pad_token_id": [0]}],
)
def test_ids_that_are_none(tmp_path, settings):
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=f"has {list(settings)[0]} .*; give a token id"):
        settings_of(tmp_path)


def test_a_default_in_one_file_contradicts_nothing(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"_from_model_config": true}')
    for size, is_refused in ((0, False), (2, True)):
        record = {"model_type": "t5", "no_repeat_ngram_size": size}
        (tmp_path / "config.json").write_text(json.dumps(record))
        refused = pytest.raises(CheckpointError, match="contradicts itself: no_repeat_ngram_size")
        with refused if is_refused else contextlib.nullcontext():
            settings_of(tmp_path)
