"""Parameters as they are read into a layout: pytest tests/engine/test_placement.py"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

import jax
import numpy as np
import pytest

from specdec import checkpoints, testing
from specdec.engine import Placement, Store, placement
from specdec.models import partitioning
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.placement.layouts import Layout, Storage
from specdec.models.t5 import T5Config, T5Target
from specdec.types import Table

SIZES: dict[str, Any] = {"vocab_size": 13, "emb_dim": 6, "num_heads": 2, "head_dim": 4}
SIZES |= {"num_decoder_layers": 2, "mlp_dim": 5}
MODELS = {
    "T5": T5Target(T5Config(**SIZES, num_encoder_layers=1)),
    "tied T5": T5Target(T5Config(**SIZES, num_encoder_layers=1, logits_via_embedding=True)),
    "LLaMA": Llama(LlamaConfig(**SIZES, num_kv_heads=1)),
}
LAYOUTS = [layout for layout in get_args(Storage) if layout != "unsigned"]


@pytest.mark.parametrize("format", ["huggingface", pytest.param("orbax", marks=pytest.mark.ci)])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_in_a_layout_are_those_of_the_checkpoint(name, layout, format, tmp_path):
    model = MODELS[name].in_layout(storage=layout)
    stored = model.stored().init(jax.random.key(3))
    checkpoints.save(tmp_path / "model", stored, config=model.config, format=format)
    found = Placement().read(model, str(tmp_path / "model"))
    jax.tree.map(np.testing.assert_array_equal, found, model.from_stored(stored))


def test_a_transposed_kernel_is_in_memory_once(tmp_path, monkeypatch):
    model = MODELS["LLaMA"].in_layout(storage="all_out_in")
    checkpoints.save(
        tmp_path / "model", MODELS["LLaMA"].init(jax.random.key(3)), config=model.config
    )

    def refused(self, params):
        assert self.layout.storage == "checkpoint", "a second tree was made"
        return params

    monkeypatch.setattr(Llama, "from_stored", refused)
    found = Placement().read(model, str(tmp_path / "model"))
    assert found["decoder"]["layers_1"]["mlp"]["wo"]["kernel"].shape == (6, 5)
    with pytest.raises(AssertionError, match="second tree"):  # of which int8 is made
        Placement().read(dataclasses.replace(model, weights="int8"), str(tmp_path / "model"))


def test_the_matrices_that_a_reader_transposes():
    """Those of a layout, where nothing else is changed; a second table of tokens is made later."""
    model, tied = MODELS["LLaMA"], MODELS["tied T5"]
    kernels = [*(f"self_attention/{name}" for name in ("query", "key", "value", "out"))]
    kernels += [f"mlp/{name}" for name in ("wi_0", "wi_1", "wo")]
    names = {f"decoder/layers_{i}/{name}/kernel" for i in range(2) for name in kernels}

    def swapped(model, *, weights="stored", **way):
        return dataclasses.replace(model, layout=Layout(**way), weights=weights).swapped()

    assert swapped(model) == swapped(model, storage="in_out") == frozenset()
    expected = names | {"decoder/logits_dense/kernel"}
    assert swapped(model, storage="out_in") == swapped(model, storage="all_out_in") == expected
    assert swapped(model, storage="out_in", weights="int8") is None
    assert swapped(tied, storage="in_out") is None and swapped(tied) == frozenset()
    assert swapped(tied, joined=True) is None


@pytest.mark.parametrize("checksums", [True, False])
def test_a_model_is_read_once_in_its_dtype_and_layout(monkeypatch, checksums):
    """A target without a family is read as it is stored. A layout that a reader can transpose is
    made by the reader, and another one in memory."""
    asked: list = []

    def load(path, **how):
        asked.append((path, {name: x for name, x in how.items() if x is not None}))
        return f"stored {len(asked)}"

    monkeypatch.setattr(placement.checkpoints, "load", load)
    monkeypatch.setattr(Llama, "from_stored", lambda self, stored: f"{self.layout} {stored}")
    monkeypatch.setattr(Llama, "to_stored", lambda self, tree: f"back from {self.layout} {tree}")
    monkeypatch.setattr(Llama, "swapped", lambda self: transposed)
    transposed: Any = frozenset({"a kernel"})
    table, store = testing.TableTarget(5), Store(Placement(checksums=checksums))
    how = {"dtype": "float32", "checksums": checksums}
    for _ in range(2):
        assert store.read(table, "a") == "stored 1"
    assert asked == [("a", how)]
    llama = MODELS["LLaMA"].in_layout(storage="out_in")
    how["config"] = llama.config
    for orders in ((), ((1, "kernel_first"),)):
        assert store.read(llama.in_layout(orders=orders), "b") == "stored 2"
    assert asked[1:] == [("b", how | {"swapped": transposed})]
    other = llama.in_layout(storage="in_out")
    for _ in range(2):
        assert store.copy().read(other, "b") == "in_out back from out_in stored 2"
    assert len(store.trees) == 2 and len(asked) == 2
    transposed = None  # as in eight bits
    assert store.read(llama, "c") == "out_in stored 3" and asked[2:] == [("c", how)]


@pytest.mark.parametrize(
    "given, shape",
    [
        ({}, None),
        ({"mesh": partitioning.make_mesh(1, jax.devices()[:2])}, (2, 1)),
        ({"partitioner": partitioning.Partitioner(8)}, (1, 8)),
    ],
)
def test_a_run_looks_at_the_shapes_of_what_it_has(monkeypatch, given, shape):
    """At those of tables, and over a mesh at those of models. The target is not there."""
    seen: list = []
    monkeypatch.setattr(Placement, "shape", lambda self, one, path: seen.append(path))
    models, tables = dict.fromkeys(("target", "draft"), MODELS["LLaMA"]), {"lookup": Table("ngram")}
    plan: Any = SimpleNamespace(
        models=lambda: models,
        tables=lambda: tables,
        owned=lambda: models | tables,
        with_models=lambda divided: plan,
    )
    placed, _ = Placement(**given).of_run(plan, {"draft": "a model", "lookup": "a table"}, rows=2)
    assert seen == (["a model", "a table"] if shape else ["a table"])
    assert (placed.mesh and placed.mesh.devices.shape) == shape
