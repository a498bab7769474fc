"""Checkpoints: parameters from disk in T5X's tree, and back.

Three formats are read, told apart by what the directory holds: T5X's native one (msgpack and zarr),
T5X's with Orbax, and our own (an Orbax checkpoint of the parameters, a `config.json`, and the
vocabulary if it was given). Our own is written. TensorStore and Orbax are imported on use.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jax.numpy as jnp
from jax.typing import DTypeLike

from specdec.checkpoints import directory, tree
from specdec.checkpoints.directory import check_pair, config_from, vocabulary_from
from specdec.checkpoints.errors import CheckpointError
from specdec.models.t5 import T5Config
from specdec.types import PyTree

__all__ = ["CheckpointError", "check_pair", "config_from", "load", "save", "vocabulary_from"]

_WRITTEN = ("orbax",)


def load(
    path: str | os.PathLike,
    *,
    config: T5Config | None = None,
    dtype: DTypeLike | None = None,
    shardings: PyTree = None,
) -> PyTree:
    """Reads the parameters of a model; optimizer state is skipped without being read.

    Args:
      path: a checkpoint's directory, or one that holds `checkpoint_<step>` directories, of which
        the latest is taken.
      config: the model they are for. Names and shapes are compared with it before any data is
        read. Our own format knows its model; T5X's are not compared if this is None.
      dtype: the floating type to cast to, array by array; None keeps what is stored.
      shardings: one `jax.sharding.Sharding` for all arrays, or a tree of them (a prefix of the
        parameters' tree). None puts whole arrays on the default device.

    Returns:
      A nested dict of arrays with T5X's names.

    Raises:
      CheckpointError: a wrong directory, a damaged file, or parameters that do not fit the model.
    """
    from specdec.checkpoints import arrays, t5x

    dtype = None if dtype is None else jnp.dtype(dtype)
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise CheckpointError(f"dtype is {dtype.name}; give a floating one, float32 or bfloat16")
    found = directory.locate(path)
    if found.format == "t5x":
        sources = t5x.native(found.directory)
    elif found.format == "t5x_orbax":
        sources = t5x.with_orbax(found.directory)
    else:
        sources = arrays.ocdbt(found.directory / "params")
        config = config or config_from(found.directory)
    stores = arrays.open_all(sources, found.directory)
    if config is not None:
        shapes = {name: store.shape for name, store in stores.items()}
        tree.check(shapes, config, f"checkpoint {found.directory}")
    return tree.unflatten(arrays.read_all(stores, found.directory, dtype, shardings))


def save(
    path: str | os.PathLike,
    params: PyTree,
    *,
    config: T5Config,
    format: str = "orbax",
    vocabulary: str | os.PathLike | None = None,
) -> None:
    """Writes a checkpoint that `load`, `config_from` and `vocabulary_from` read back.

    The directory appears under its name when it is complete, so a save that is killed never looks
    like a checkpoint.

    Args:
      path: the directory to make; it must not exist.
      params: a nested dict of arrays that fits `config`; each keeps its dtype.
      config: their model.
      format: 'orbax', our own.
      vocabulary: the SentencePiece `.model` file of the model's texts; a copy is kept with the
        parameters.

    Raises:
      CheckpointError: an unknown format, a path that exists, no such vocabulary, or parameters that
        do not fit.
    """
    from specdec.checkpoints import orbax

    path = directory.local(path)
    if format not in _WRITTEN:
        raise CheckpointError(f"unknown format {format!r}; known: {', '.join(_WRITTEN)}")
    if path.exists():
        raise CheckpointError(f"{path} exists; give a new directory, or remove this one first")
    if vocabulary is not None:
        vocabulary = directory.local(vocabulary)
        if not vocabulary.is_file():
            raise CheckpointError(f"vocabulary {vocabulary} is not a file; give a .model file")
    shapes = {name: leaf.shape for name, leaf in tree.flatten(params).items()}
    tree.check(shapes, config, "the tree of parameters")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as staging:
        complete = Path(staging) / path.name
        orbax.write(complete, params, config, vocabulary)
        complete.rename(path)
