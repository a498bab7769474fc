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
    [("use_cache", False, False), ("top_k", 0, False), ("top_k", 5, True), ("unknown", 1, True)],
)
def test_settings_that_change_something(name, value, is_one):
    assert changes(name, value) == is_one


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
