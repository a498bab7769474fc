"""Our own format, there and back: pytest tests/checkpoints/test_checkpoint_save.py"""

import errno
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specdec.checkpoints import (
    FORMATS,
    CheckpointError,
    config_from,
    load,
    save,
    vocabulary_from,
)


def bits(tree):
    """{path: (dtype, bytes)} of a tree of arrays."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path): (str(leaf.dtype), np.asarray(leaf).tobytes())
        for path, leaf in leaves
    }


@pytest.fixture
def params(golden):
    return load(golden / "v1_1" / "t5x_native")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back(tmp_path, golden, config_of, dtype):
    params = load(golden / "v1_1" / "t5x_native", dtype=dtype)
    config = config_of("v1_1", dtype=dtype, layer_norm_epsilon=3e-6)
    save(tmp_path / "new" / "model", params, config=config)
    assert bits(load(tmp_path / "new" / "model")) == bits(params)
    assert config_from(tmp_path / "new" / "model") == config
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["model"]


def test_leaves_may_be_numpy_sharded_and_of_several_dtypes(tmp_path, params, config_of):
    mesh = Mesh(np.array(jax.devices()), ("model",))
    params["decoder"]["decoder_norm"]["scale"] = np.full(32, 2, np.float16)
    embedding = params["token_embedder"]["embedding"]
    sharded = jax.device_put(embedding, NamedSharding(mesh, P("model")))
    params["token_embedder"]["embedding"] = sharded
    save(tmp_path / "model", params, config=config_of("v1_1"))
    assert bits(load(tmp_path / "model")) == bits(params)


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_alone_reads_what_was_saved(tmp_path, params, config_of):
    import orbax.checkpoint as ocp

    save(tmp_path / "model", params, config=config_of("v1_1"))
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert bits(checkpointer.restore(tmp_path / "model" / "params")) == bits(params)


def test_a_step_can_be_saved_and_the_vocabulary_comes_along(tmp_path, params, config_of):
    vocabulary = tmp_path / "pieces.model"
    vocabulary.write_bytes(b"pieces")
    run = tmp_path / "run"
    save(run / "checkpoint_5", params, config=config_of("v1_1"), vocabulary=vocabulary)
    vocabulary.unlink()
    assert vocabulary_from(run)[:2] == (run / "checkpoint_5" / "pieces.model", 0)
    assert bits(load(run)) == bits(params)


def test_the_recorded_model_is_checked(tmp_path, params, config_of):
    save(tmp_path / "model", params, config=config_of("v1_1"))
    record = tmp_path / "model" / "config.json"
    record.write_text(record.read_text().replace('"emb_dim": 32', '"emb_dim": 48'))
    with pytest.raises(CheckpointError, match="checkpoint .*/model does not fit the model"):
        load(tmp_path / "model")
    assert bits(load(tmp_path / "model", config=config_of("v1_1"))) == bits(params)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"format": "safetensors"}, "unknown format 'safetensors'; known: orbax, t5x, huggingface"),
        ({"vocabulary": "nowhere.model"}, "vocabulary .*/nowhere.model is not a file"),
        ({"path": "."}, "exists; give a new directory, or remove this one first"),
        ({"path": "gs://bucket/model"}, "is a URL, and only local directories can be written"),
        (
            {"fields": {"emb_dim": 48}},
            "the tree of parameters does not fit the model: 64 misshaped",
        ),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(
    tmp_path, monkeypatch, params, config_of, arguments, complaint
):
    monkeypatch.chdir(tmp_path)
    arguments = {"path": "model", **arguments}
    config = config_of("v1_1", **arguments.pop("fields", {}))
    with pytest.raises(CheckpointError) as raised:
        save(params=params, config=config, **arguments)
    assert re.search(complaint, str(raised.value)) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, params, config_of):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    (tmp_path / "pieces.model").touch()
    with pytest.raises(OSError, match="no space"):
        save(
            tmp_path / "model",
            params,
            config=config_of("v1_1"),
            vocabulary=tmp_path / "pieces.model",
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["pieces.model"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_named(tmp_path, params, config_of, small_files, format):
    given = {"config": config_of("v1_1"), "format": format}
    with small_files(), pytest.raises(OSError) as caught:
        save(tmp_path / "model", params, **given)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    save(tmp_path / "model", params, **given)


@pytest.mark.ci
def test_a_save_that_is_killed_is_no_checkpoint(tmp_path, golden):
    """Killed when all parameters are written, which is as late as it can be incomplete."""
    program = f"""
import json, os
from specdec.checkpoints import directory, load, save
from specdec.models.t5 import T5Config

config = T5Config(**json.load(open({str(golden / "v1_1" / "config.json")!r})))
params = load({str(golden / "v1_1" / "t5x_native")!r})
directory.write_json = lambda *_: os._exit(9)
save({str(tmp_path / "checkpoint_1")!r}, params, config=config)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    (staging,) = tmp_path.iterdir()
    assert list(staging.glob("*/params/manifest.ocdbt"))
    for path in (tmp_path, staging, staging / "checkpoint_1"):
        with pytest.raises(CheckpointError, match="no checkpoint in "):
            load(path)
