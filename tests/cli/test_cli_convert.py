"""`specdec convert`: pytest tests/cli/test_cli_convert.py"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny_t5

from specdec import checkpoints, cli
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.t5 import T5Target

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FORMATS = ("t5x", "huggingface", "orbax")


def bits(path) -> dict[str, tuple]:
    """{parameter: (dtype, bytes)} of a checkpoint."""
    leaves, _ = jax.tree.flatten_with_path(checkpoints.load(path))
    return {
        jax.tree_util.keystr(name): (leaf.dtype.name, np.asarray(leaf).tobytes())
        for name, leaf in leaves
    }


def convert(*argv) -> None:
    assert cli.main(["convert", *map(str, argv)]) == 0


def error_of(capsys, *argv) -> str:
    """The one line that a mistake ends in."""
    assert cli.main(["convert", *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


@pytest.fixture
def t5x(tmp_path) -> Path:
    """A copy of a golden checkpoint of T5X, with its model and a vocabulary."""
    folder = tmp_path / "input"
    shutil.copytree(GOLDEN / "v1_1" / "t5x_native" / "checkpoint_0", folder)
    shutil.copy(GOLDEN / "v1_1" / "config.json", folder)
    return folder


@pytest.mark.parametrize("model", ["v1_0", "wide_heads"])
def test_a_round_trip_through_every_format_is_identical(tmp_path, model):
    original = GOLDEN / model / "t5x_native"
    previous, config = original, checkpoints.read_config(GOLDEN / model / "config.json")
    for format in FORMATS:
        told = ["--config", GOLDEN / model / "config.json"] if previous == original else []
        convert(previous, tmp_path / format, "--format", format, *told)
        assert checkpoints.directory.locate(tmp_path / format).format == format
        assert checkpoints.config_from(tmp_path / format) == config
        assert bits(tmp_path / format) == bits(original)
        previous = tmp_path / format


def test_special_ids_come_along_through_every_format(tmp_path):
    previous = original = GOLDEN / "hf_madlad_tied"
    for format in ("orbax", *FORMATS):
        previous, source = tmp_path / f"{format} of {previous.name}", previous
        convert(source, previous, "--format", format)
        assert checkpoints.config_from(previous) == checkpoints.config_from(original)
        text = checkpoints.text_model_from(previous)
        assert (text.pad_id, text.start_id, text.stop_ids) == (1, 0, (2, 60))
    assert bits(previous) == bits(original)


def test_the_dtype_and_the_vocabulary_come_along(tmp_path, t5x, capsys):
    pieces = Path(__file__).parents[2] / "demo" / "vocabulary.model"
    flags = ["--dtype", "bfloat16", "--vocabulary", pieces]
    convert(t5x, tmp_path / "a", "--format", "t5x", *flags)
    line = capsys.readouterr().out
    assert (
        line.startswith(f"wrote {tmp_path / 'a'}: ")
        and "72,416 parameters, bfloat16, 0.1 MB" in line
    )
    assert "vocabulary: vocabulary.model, sha256 " in line
    convert(tmp_path / "a", tmp_path / "b", "--format", "orbax")
    expected = checkpoints.load(t5x, dtype="bfloat16")
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert checkpoints.vocabulary_from(folder)[:2] == (folder / "vocabulary.model", 0)
        assert checkpoints.config_from(folder).dtype == "bfloat16"
        loaded = checkpoints.load(folder)
        assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), loaded, expected))
    convert(t5x, tmp_path / "c", "--format", "orbax", "--vocabulary=bytes")
    assert checkpoints.vocabulary_from(tmp_path / "c")[:2] == (None, 0)


def test_a_config_that_does_not_fit_is_refused(tmp_path, t5x, capsys, monkeypatch):
    monkeypatch.setattr(checkpoints, "save", None)  # before anything is written
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads((t5x / "config.json").read_text()) | {"emb_dim": 48}))
    message = error_of(capsys, t5x, tmp_path / "new", "--format=t5x", f"--config={config}")
    assert "emb_dim=32, not 48" in message and not (tmp_path / "new").exists()


@pytest.fixture
def trim(tmp_path, capsys):
    """Trims a checkpoint of zeros; returns the exit code, stdout and stderr."""

    def run(model, *flags):
        shapes = model.parameter_shapes()
        params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        checkpoints.save(tmp_path / "whole", params, config=model.config)
        capsys.readouterr()
        paths = f"--input={tmp_path / 'whole'}", f"--output={tmp_path / 'part'}"
        return cli.main(["trim", *paths, *flags]), *capsys.readouterr()

    return run


def test_a_head_says_which_share_of_tokens_it_has(trim, tmp_path):
    """Token 5 comes four times among eight, and 6 twice."""
    lines = [[5, 6, 7, 5], [5, 8, 6, 5]]
    rows = (json.dumps({"index": i, "input": "a", "tokens": ids}) for i, ids in enumerate(lines))
    (tmp_path / "predictions.jsonl").write_text("".join(f"{row}\n" for row in rows))
    head = "--head_size=2", f"--predictions={tmp_path}"
    code, out, err = trim(T5Target(tiny_t5(9, 4)), "--shared_encoder", *head)
    assert (code, err) == (0, "")
    assert f"its head has 2 of 9 ids, 75.00% of the tokens in {tmp_path}\n" in out
    assert checkpoints.config_from(tmp_path / "part").num_encoder_layers == 0


@pytest.mark.parametrize("flag", ["--shared_encoder", "--encoder_layers=first:1"])
def test_a_model_without_an_encoder_keeps_none(trim, flag):
    code, _, err = trim(Llama(LlamaConfig(9, 4, 1, 1, 4, 4, 1)), flag)
    said = f"{flag.partition('=')[0]} is about an encoder, and the model has none; leave it out"
    assert (code, err) == (2, f"specdec: {said}\n")


@pytest.mark.parametrize("layers, deeper", [((1, 2), True), ((2, 2), False), ((2, 1), False)])
def test_a_deep_decoder_needs_a_setting_of_transformers(tmp_path, capsys, layers, deeper):
    encoder, decoder = layers
    config = dataclasses.replace(
        tiny_t5(11, 3, 5, head_dim=4), num_encoder_layers=encoder, num_decoder_layers=decoder
    )
    checkpoints.save(tmp_path / "own", T5Target(config).init(jax.random.key(0)), config=config)
    convert(tmp_path / "own", tmp_path / "hf", "--format=huggingface")
    assert ("use_cache=False" in capsys.readouterr().out) == deeper
    convert(tmp_path / "own", tmp_path / "t5x", "--format=t5x")
    assert "use_cache" not in capsys.readouterr().out
