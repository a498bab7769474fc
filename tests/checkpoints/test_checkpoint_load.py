"""Reading T5X's two formats, whole and damaged: pytest tests/checkpoints/test_checkpoint_load.py"""

import contextlib
import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from checkpoint_files import assert_identical, error_of
from flax import serialization
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specdec.checkpoints import CheckpointError, arrays, load, t5x_format, tree
from specdec.models.t5 import T5Target
from specdec.models.t5.config import SIZES
from specdec.models.t5.shapes import PRESETS

MODELS = ("v1_0", "v1_1", "wide_heads")
FORMATS = ("t5x_native", "t5x_orbax")
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
OCDBT_MAGIC = bytes.fromhex("0cdb")
load_error = functools.partial(error_of, load)


def rewrite(checkpoint, edit):
    """Applies `edit` to the tree of the model in a native checkpoint's msgpack file."""
    file = checkpoint / "checkpoint"
    contents = serialization.msgpack_restore(file.read_bytes())
    edit(contents["optimizer"]["target"])
    file.write_bytes(serialization.msgpack_serialize(contents))


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
@pytest.mark.parametrize("model", MODELS)
def test_native_orbax_and_orbaxs_own_reader_agree(golden, config_of, model):
    import orbax.checkpoint as ocp

    native, orbax = (load(golden / model / format, config=config_of(model)) for format in FORMATS)
    assert_identical(native, orbax)
    with ocp.PyTreeCheckpointer() as checkpointer:
        state = checkpointer.restore(golden / model / "t5x_orbax" / "checkpoint_0" / "state")
    assert_identical(native, state["target"])
    assert {leaf.dtype.name for leaf in jax.tree.leaves(native)} == {"float32"}


def test_optimizer_state_is_not_read(copy, config_of, golden):
    checkpoint = copy("wide_heads/t5x_native")
    files = [file for file in checkpoint.glob("state.*/*") if file.is_file()]
    assert len(files) == 86
    for file in files:
        file.write_bytes(b"not zarr")
    expected = load(golden / "wide_heads" / "t5x_native")
    assert_identical(load(checkpoint, config=config_of("wide_heads")), expected)
    stored = t5x_format.with_orbax(golden / "wide_heads" / "t5x_orbax" / "checkpoint_0")
    assert stored.keys() == tree.flatten(expected).keys()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["bfloat16", jnp.float16, np.dtype("float32")])
def test_arrays_are_cast_as_numpy_casts(golden, format, dtype):
    """To the nearest number. (XLA's cast to float16 is another without F16C, as under SSE 4.2.)"""
    stored = load(golden / "v1_1" / format)
    cast = load(golden / "v1_1" / format, dtype=dtype)
    expected = jax.tree.map(lambda array: np.asarray(array).astype(jnp.dtype(dtype)), stored)
    assert_identical(cast, expected)


def test_only_floating_dtypes_are_legal(golden):
    assert "dtype is int8; give a floating one" in load_error(golden / "v1_0", dtype="int8")


def test_the_latest_complete_step_is_chosen(copy, tmp_path):
    copy("v1_0/t5x_native", "checkpoint_9")
    copy("v1_1/t5x_orbax", "checkpoint_10")
    copy("wide_heads/t5x_native", "checkpoint_11.tmp-123")
    assert_identical(load(tmp_path), load(tmp_path / "checkpoint_10"))
    assert "wi" in load(tmp_path / "checkpoint_9")["encoder"]["layers_0"]["mlp"]


def test_leaves_inside_the_msgpack_file_and_paths_in_a_bucket(copy, golden):
    checkpoint = copy("v1_1/t5x_native")
    expected = tree.flatten(load(checkpoint))
    inline = np.asarray(expected["encoder/encoder_norm/scale"], jnp.bfloat16)

    def edit(target):
        target["encoder"]["encoder_norm"]["scale"] = inline
        embedding = target["token_embedder"]["embedding"]
        embedding["kvstore"] |= {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
        logits = target["decoder"]["logits_dense"]["kernel"]
        logits["path"] = logits["kvstore"].pop("path")

    rewrite(checkpoint, edit)
    expected["encoder/encoder_norm/scale"] = inline
    assert_identical(load(checkpoint), tree.unflatten(expected))


@pytest.mark.parametrize("format", FORMATS)
def test_arrays_are_placed_by_their_shardings(golden, format):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    everywhere, by_column = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "model"))
    whole = load(golden / "v1_1" / format)

    replicated = load(golden / "v1_1" / format, shardings=everywhere)
    assert_identical(replicated, whole)
    assert all(leaf.sharding == everywhere for leaf in jax.tree.leaves(replicated))

    wanted = jax.tree.map(lambda leaf: by_column if leaf.ndim == 2 else everywhere, whole)
    sharded = load(golden / "v1_1" / format, shardings=wanted, dtype="bfloat16")
    assert_identical(sharded, load(golden / "v1_1" / format, dtype="bfloat16"))
    assert jax.tree.map(lambda leaf: leaf.sharding, sharded) == wanted
    (shard, *_) = sharded["token_embedder"]["embedding"].addressable_shards
    assert shard.data.shape == (128, 8)


class FirstHalf:
    """The sharding of a host whose devices have the first half of every array."""

    def addressable_devices_indices_map(self, shape):
        return {0: (slice(0, shape[0] // 2), *(slice(None) for _ in shape[1:]))}


@pytest.mark.parametrize("model", [*(f"v1_1/{format}" for format in FORMATS), "hf_v1_1"])
def test_a_host_reads_only_what_its_devices_are_to_have(golden, model, monkeypatch):
    whole = tree.flatten(load(golden / model))
    fetched = []

    def fetch(*arguments):
        fetched.append(original(*arguments))
        return fetched[-1]

    original = arrays.fetch
    monkeypatch.setattr(arrays, "fetch", fetch)
    monkeypatch.setattr(arrays, "_place", lambda part, *_: part)
    halves = tree.flatten(load(golden / model, shardings=FirstHalf()))
    for name, half in halves.items():
        np.testing.assert_array_equal(half, whole[name][: len(half)])
    assert sorted(x.shape for x in fetched) == sorted(
        (len(x) // 2, *x.shape[1:]) for x in whole.values()
    )


@pytest.mark.parametrize(
    "fields, counts, cause",
    [
        (
            {"emb_dim": 48},
            r"64 misshaped \(.*\(32,\), not \(48,\), .*, \.\.\.\)",
            "these are the parameters of a v1.1 T5: emb_dim=32, not 48",
        ),
        (
            {"vocab_size": 132},
            r"2 misshaped \(decoder/logits_dense/kernel \(32, 128\), not \(32, 132\), "
            r"token_embedder/embedding \(128, 32\), not \(132, 32\)\)",
            "these are the parameters of a v1.1 T5: vocab_size=128, not 132",
        ),
        (
            {"logits_via_embedding": True},
            r"1 unexpected \(decoder/logits_dense/kernel \(32, 128\)\)",
            "these are the parameters of a v1.1 T5: logits_via_embedding=False, not True",
        ),
        (
            {"mlp_activations": ("relu",)},
            r"5 missing \(decoder/layers_0/mlp/wi/kernel \(32, 64\), .*; "
            r"10 unexpected \(decoder/layers_0/mlp/wi_0/kernel \(32, 64\)",
            r"these are .* of a v1\.1 T5: mlp_activations=\('gelu', 'linear'\), not \('relu',\)",
        ),
        (
            {"num_decoder_layers": 2},
            r"14 unexpected \(decoder/layers_2/",
            "these are .*: num_decoder_layers=3, not 2",
        ),
        (
            {"num_encoder_layers": 4},
            r"18 missing \(encoder/layers_2/",
            "these are .*: num_encoder_layers=2, not 4",
        ),
    ],
)
def test_a_misfit_names_counts_shapes_and_cause(golden, config_of, fields, counts, cause):
    message = load_error(golden / "v1_1/t5x_native", config=config_of("v1_1", **fields))
    assert re.fullmatch(
        f"checkpoint .*checkpoint_0 does not fit the model: {counts}.* likely cause: {cause}.*",
        message,
    )


def test_a_misfit_of_a_v1_0_model_and_of_something_else(golden, config_of, copy):
    message = load_error(golden / "v1_0/t5x_orbax", config=config_of("v1_1", num_decoder_layers=2))
    assert "of a v1.0 T5: mlp_activations=('relu',), not ('gelu', 'linear'), logits_via" in message
    checkpoint = copy("v1_0/t5x_native")
    rewrite(checkpoint, lambda target: target.update(mlp=target.pop("encoder")["encoder_norm"]))
    assert "an incomplete or altered checkpoint" in load_error(checkpoint, config=config_of("v1_0"))
    rewrite(checkpoint, lambda target: [target.pop("decoder"), target.pop("token_embedder")])
    assert "not the parameters of a T5" in load_error(checkpoint, config=config_of("v1_0"))


@pytest.mark.parametrize("sizes, preset", [*PRESETS.items()][::8])
def test_a_misfit_names_the_released_size_that_it_found(sizes, preset, config_of):
    v1_0 = {"mlp_activations": ("relu",)} if "1_0" in preset else {}
    fields = dict(zip(SIZES, sizes, strict=True)) | v1_0
    found = tree.shapes_of(T5Target(config_of("v1_1", **fields)))
    version = "v1.0" if v1_0 else "v1.1"
    with pytest.raises(CheckpointError, match=f"of a {version} T5 of size {preset}: .*emb_dim="):
        tree.check(found, config_of("v1_1"), "it")


def damage(checkpoint):
    """Makes the data of every array unreadable, and keeps the shapes readable."""
    for file in checkpoint.glob("target.*/[0-9]*"):
        file.write_bytes(b"not gzip")
    for file in checkpoint.glob("state/ocdbt.process_0/d/*"):
        # Chunks are zstd frames; the nodes of the database have headers of their own.
        content = file.read_bytes()
        if not content.startswith(OCDBT_MAGIC):
            file.write_bytes(content.replace(ZSTD_MAGIC, b"none"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_misfit_is_reported_before_data_is_read(copy, config_of, format):
    checkpoint = copy(f"v1_1/{format}")
    damage(checkpoint)
    assert "does not fit the model" in load_error(checkpoint, config=config_of("v1_1", emb_dim=48))
    message = load_error(checkpoint, config=config_of("v1_1"))
    assert re.search(
        "^cannot read (de|en)coder/.* in .*; the copy may be incomplete, make it again$", message
    )


def test_a_lost_chunk_is_not_read_as_zeros(copy):
    checkpoint = copy("v1_1/t5x_native")
    (checkpoint / "target.encoder.encoder_norm.scale" / "0").unlink()
    assert re.search("cannot read encoder/encoder_norm/scale .*missing", load_error(checkpoint))


def test_a_lost_array_is_named(copy):
    checkpoint = copy("v1_1/t5x_native")
    (checkpoint / "target.encoder.encoder_norm.scale" / ".zarray").unlink()
    assert "cannot open encoder/encoder_norm/scale in" in load_error(checkpoint)


def test_bfloat16_kept_as_integers_is_refused(copy):
    """Version 2 of T5X's format did this; read as numbers they would be nonsense."""
    checkpoint = copy("v1_1/t5x_native")
    file = checkpoint / "target.encoder.encoder_norm.scale" / ".zarray"
    file.write_text(file.read_text().replace("<f4", "<u2"))
    message = load_error(checkpoint)
    assert "encoder/encoder_norm/scale" in message and "is uint16" in message


@pytest.mark.parametrize("content", [b"", b"junk", serialization.msgpack_serialize({"step": 1})])
def test_a_file_that_is_not_t5xs_is_refused(copy, content):
    checkpoint = copy("v1_1/t5x_native")
    (checkpoint / "checkpoint").write_bytes(content)
    assert "is not the msgpack file of a T5X checkpoint" in load_error(checkpoint)


def test_an_unknown_version_is_refused(copy):
    checkpoint = copy("v1_1/t5x_native")
    contents = serialization.msgpack_restore((checkpoint / "checkpoint").read_bytes())
    (checkpoint / "checkpoint").write_bytes(
        serialization.msgpack_serialize(contents | {"version": 1})
    )
    assert re.search(r"has version 1 .* only \(2, 3\) can be read", load_error(checkpoint))


def test_an_orbax_state_without_a_model_or_a_database_is_refused(copy, tmp_path):
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint_1" / "state", {"params": np.ones(3, np.float32)})
    assert "nothing is stored under 'target'" in load_error(tmp_path)
    checkpoint = copy("v1_1/t5x_orbax")
    (checkpoint / "state" / "manifest.ocdbt").write_bytes(b"junk")
    assert re.search("^cannot read .*/state: ", load_error(checkpoint))


@pytest.mark.parametrize("memory, fits", [(32, True), (31, False)])
def test_an_array_may_be_as_large_as_the_memory(monkeypatch, memory, fits):
    stored = {"driver": "zarr", "kvstore": "memory://"}
    data = ts.open(stored, create=True, dtype=ts.float32, shape=[8]).result()
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory}.get)
    said = r"^a has the shape \(8,\) in pieces of \(8,\), which need 0 GB, more than the array or"
    with contextlib.nullcontext() if fits else pytest.raises(CheckpointError, match=said):
        arrays._check_size(data, "a")


def test_an_error_of_tensorstore_is_cut():
    error = ValueError(f"{'x' * 501} [tensorstore_spec='{{}}']\nmore")
    assert arrays._line(error) == "x" * 500
    assert arrays._line(ValueError("short [tensorstore_spec='{}']")) == "short"
