"""Scanned layers, older layouts, buckets, T5X's format written: pytest
tests/checkpoints/test_checkpoint_formats.py"""

import dataclasses
import errno
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoint_files import assert_identical
from flax import serialization
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specdec.checkpoints import (
    FORMATS,
    CheckpointError,
    arrays,
    config_from,
    load,
    save,
    t5x_format,
    tree,
    vocabulary_from,
)
from specdec.checkpoints.cloud_storage import BucketPath

CONFIG = Path(__file__).resolve().parents[1] / "golden" / "v1_1" / "config.json"


@pytest.fixture
def params(golden):
    return load(golden / "v1_1" / "t5x_native")


def scalable(params, axis: int, heads: int):
    """The tree that T5X's scalable_t5 would have: layers stacked along `axis`, heads apart."""
    leaves, stacks = {}, {}
    for name, leaf in tree.flatten(params).items():
        leaf = np.asarray(leaf)
        if "/attention/" in name or "_attention/" in name:
            into = (heads, -1, leaf.shape[1]) if "/out/" in name else (leaf.shape[0], heads, -1)
            leaf = leaf.reshape(into)
        if match := re.fullmatch(r"(encoder|decoder)/layers_\d+/(.+)", name):
            stacks.setdefault(f"{match[1]}/{match[1]}/{match[2]}", []).append(leaf)
        elif match := re.fullmatch(r"(encoder|decoder)/(relpos_bias/.+)", name):
            layers = len([key for key in params[match[1]] if key.startswith("layers_")])
            stacks[f"{match[1]}/{match[1]}/{match[2]}"] = [leaf] * layers
        else:
            leaves[name] = leaf
    stacked = {name: np.stack(layers, axis) for name, layers in stacks.items()}
    return tree.unflatten(leaves | stacked)


@pytest.mark.parametrize("axis", [0, 1])
def test_scanned_layers_are_unstacked(tmp_path, params, config_of, axis):
    config = config_of("v1_1")
    t5x_format.write(tmp_path / "scanned", scalable(params, axis, config.num_heads), config, None)
    assert_identical(load(tmp_path / "scanned", config=config), params)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh, P(*["model"][: leaf.ndim])), params)
    sharded = load(tmp_path / "scanned", shardings=shardings, dtype="bfloat16")
    assert_identical(sharded, jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params))
    assert jax.tree.map(lambda leaf: leaf.sharding, sharded) == shardings


def test_a_relative_bias_of_each_layers_own_needs_a_config_that_says_so(
    tmp_path, params, config_of
):
    config = config_of("v1_1")
    scanned = scalable(params, 1, config.num_heads)
    per_layer = dataclasses.replace(config, relative_bias_per_layer=True)
    t5x_format.write(tmp_path / "same", scanned, config, None)
    loaded = load(tmp_path / "same", config=per_layer)  # all equal, and each layer's own still
    assert "relpos_bias" not in loaded["decoder"] and "relpos_bias" in loaded["decoder"]["layers_0"]
    scanned["decoder"]["decoder"]["relpos_bias"]["rel_embedding"][0, 1] += 1
    t5x_format.write(tmp_path / "own", scanned, config, None)
    message = "1 missing .*decoder/layers_0/relpos_bias.* relative_bias_per_layer=True, not False"
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "own", config=config)


@pytest.mark.parametrize("mark", ["_METADATA", "checkpoint"])
def test_orbaxs_layout_without_a_database(tmp_path, params, config_of, mark):
    """One folder for each array. Earlier Orbax had a file 'checkpoint' and no '_METADATA'."""
    import orbax.checkpoint as ocp

    state = tmp_path / "checkpoint_3" / "state"
    contents = {"target": params, "state": {"step": np.int32(3), "m": {"a": np.ones(2)}}}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(state, contents)
    (state / "_METADATA").rename(state / mark)
    shutil.rmtree(state / "state.m.a")  # optimizer state is not looked at
    assert_identical(load(tmp_path, config=config_of("v1_1")), params)


def test_what_is_written_for_t5x_has_its_structure(tmp_path, golden, config_of):
    original = golden / "v1_1" / "t5x_native" / "checkpoint_0"
    save(tmp_path / "checkpoint_0", load(original), config=config_of("v1_1"), format="t5x")
    theirs, ours = (
        serialization.msgpack_restore((folder / "checkpoint").read_bytes())
        for folder in (original, tmp_path / "checkpoint_0")
    )
    assert ours["version"] == theirs["version"]
    assert ours["optimizer"]["target"] == theirs["optimizer"]["target"]
    step = ours["optimizer"]["state"].pop("step")
    assert (
        step.dtype == theirs["optimizer"]["state"]["step"].dtype and not ours["optimizer"]["state"]
    )
    folders = {path.name for path in tmp_path.glob("*/target.*")}
    assert folders == {path.name for path in original.glob("target.*")}
    name = "target.decoder.layers_0.mlp.wi_0.kernel"
    assert sorted(path.name for path in (tmp_path / "checkpoint_0" / name).iterdir()) == sorted(
        path.name for path in (original / name).iterdir()
    )


def test_large_arrays_are_written_in_pieces():
    assert arrays.chunks((250_112, 1024), 4) == [15_632, 1024]
    assert arrays.chunks((4096, 4096), 4) == [4096, 4096]
    assert arrays.chunks((4097, 4097), 4) == [2049, 4097]


def test_what_is_in_flight_is_bounded(monkeypatch):
    """Each item counts as many bytes as it says; one that is too large goes alone."""
    monkeypatch.setattr(arrays, "_IN_FLIGHT", 10)
    flying, most = [], []

    def work(item):
        flying.append(item)
        time.sleep(0.01)
        most.append(sum(flying))
        flying.remove(item)
        return -item

    items = [12, 6, 5, 5, 4, 3, 3, 2, 1, 1, 1]
    assert list(arrays._windowed(work, items, int)) == [-item for item in items]
    assert max(most) == 12 and sorted(most)[-2] <= 10 and sum(n > 6 for n in most) > 2


# Buckets.


@pytest.mark.parametrize("url, path", [("gs://b", ""), ("gs://b/", ""), ("gs://b/c//d/", "c/d/")])
def test_the_folder_of_a_bucket(url, path):
    assert BucketPath.parse(url).kvstore() == {"driver": "gcs", "bucket": "b", "path": path}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The folder that gs://bucket stands for here: TensorStore's driver for disks in place of its
    driver for Google Cloud Storage. All else is as in a bucket."""

    def kvstore(path):
        return {
            "driver": "file",
            "path": f"{tmp_path}/{path.bucket}/{path.key}/".replace("//", "/"),
        }

    monkeypatch.setattr(BucketPath, "kvstore", kvstore)
    return tmp_path / "bucket"


@pytest.mark.parametrize("format", ["t5x_native", "t5x_orbax"])
def test_t5xs_checkpoints_in_a_bucket(bucket, golden, params, config_of, format):
    shutil.copytree(golden / "v1_1" / format, bucket / "models" / "en" / format)
    shutil.copytree(golden / "v1_0" / format, bucket / "models" / "en" / "checkpoint_1")
    shutil.copy(CONFIG, bucket / "models" / "en" / format)
    url = f"gs://bucket/models/en/{format}/"
    assert_identical(load(url, config=config_of("v1_1")), params)
    assert_identical(load(f"{url}checkpoint_0"), params)
    assert config_from(url) == config_of("v1_1")
    assert vocabulary_from(url) is None


def test_our_checkpoints_in_a_bucket(bucket, params, config_of, tmp_path):
    pieces = tmp_path / "pieces.model"
    pieces.write_bytes(b"pieces")
    save(bucket / "mine", params, config=config_of("v1_1"), vocabulary=pieces)
    assert_identical(load("gs://bucket/mine"), params)
    found = vocabulary_from("gs://bucket/mine")
    assert str(found.path) == "gs://bucket/mine/pieces.model"
    save(tmp_path / "copy", params, config=config_of("v1_1"), vocabulary=found)
    assert vocabulary_from(tmp_path / "copy").path.read_bytes() == b"pieces"


def test_what_a_bucket_cannot_give(bucket):
    (bucket / "theirs").mkdir(parents=True)
    (bucket / "theirs" / "config.json").write_text('{"model_type": "t5"}')
    (bucket / "theirs" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="gs://bucket/theirs is Hugging Face's.* copy it to"):
        load("gs://bucket/theirs")
    with pytest.raises(
        CheckpointError, match="no checkpoint in gs://bucket/nothing: .*nothing; gi"
    ):
        load("gs://bucket/nothing")
    with pytest.raises(CheckpointError, match="'gs://bucket/new' is a URL"):
        save("gs://bucket/new", {}, config=None)


def test_a_bucket_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", "http://localhost:9")
    monkeypatch.setenv("GCE_METADATA_ROOT", "localhost:9")
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match="cannot read gs://bucket/model: .*; check the") as it:
        load("gs://bucket/model")
    assert "\n" not in str(it.value)
    assert time.perf_counter() - start < 10


def test_equal_trees_are_written_equally(tmp_path, params, config_of):
    upside_down = tree.unflatten(dict(reversed(tree.flatten(params).items())))
    for name, given in {"a": params, "b": upside_down}.items():
        save(tmp_path / name, given, config=config_of("v1_1"), format="huggingface")
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b


@pytest.mark.parametrize("ocdbt", (True, False))
def test_zarr3_of_orbax_is_read(tmp_path, params, ocdbt):
    import orbax.checkpoint as ocp

    folder = tmp_path / "checkpoint_5"
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=True)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder / "state", {"target": params, "state": {"step": np.int32(5)}})
    assert_identical(load(folder), params)


# Our own format, there and back.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back(tmp_path, golden, config_of, dtype):
    params = load(golden / "v1_1" / "t5x_native", dtype=dtype)
    config = config_of("v1_1", dtype=dtype, layer_norm_epsilon=3e-6)
    save(tmp_path / "new" / "model", params, config=config)
    assert_identical(load(tmp_path / "new" / "model"), params)
    assert config_from(tmp_path / "new" / "model") == config
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["model"]


def test_leaves_may_be_numpy_sharded_and_of_several_dtypes(tmp_path, params, config_of):
    mesh = Mesh(np.array(jax.devices()), ("model",))
    params["decoder"]["decoder_norm"]["scale"] = np.full(32, 2, np.float16)
    embedding = params["token_embedder"]["embedding"]
    sharded = jax.device_put(embedding, NamedSharding(mesh, P("model")))
    params["token_embedder"]["embedding"] = sharded
    save(tmp_path / "model", params, config=config_of("v1_1"))
    assert_identical(load(tmp_path / "model"), params)


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_alone_reads_what_was_saved(tmp_path, params, config_of):
    import orbax.checkpoint as ocp

    save(tmp_path / "model", params, config=config_of("v1_1"))
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert_identical(checkpointer.restore(tmp_path / "model" / "params"), params)


def test_a_step_can_be_saved_and_the_vocabulary_comes_along(tmp_path, params, config_of):
    vocabulary = tmp_path / "pieces.model"
    vocabulary.write_bytes(b"pieces")
    run = tmp_path / "run"
    save(run / "checkpoint_5", params, config=config_of("v1_1"), vocabulary=vocabulary)
    vocabulary.unlink()
    assert vocabulary_from(run)[:2] == (run / "checkpoint_5" / "pieces.model", 0)
    assert_identical(load(run), params)


def test_the_recorded_model_is_checked(tmp_path, params, config_of):
    save(tmp_path / "model", params, config=config_of("v1_1"))
    record = tmp_path / "model" / "config.json"
    record.write_text(record.read_text().replace('"emb_dim": 32', '"emb_dim": 48'))
    with pytest.raises(CheckpointError, match="checkpoint .*/model does not fit the model"):
        load(tmp_path / "model")
    assert_identical(load(tmp_path / "model", config=config_of("v1_1")), params)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"format": "safetensors"}, "unknown format 'safetensors'; known: orbax, t5x, huggingface"),
        ({"vocabulary": "nowhere.model"}, "vocabulary .*/nowhere.model is not a file"),
        ({"path": "."}, "exists; give a new directory, or remove this one first"),
        ({"path": "gs://bucket/model"}, "is a URL, and only local directories can be written"),
        ({"fields": {"emb_dim": 48}}, "the tree of parameters does not fit the model: 64 misshape"),
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
