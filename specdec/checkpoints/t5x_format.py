"""T5X's two formats: finds the arrays of a model in both, and writes the native format.

They store a train state with the model under 'target'. The optimizer under 'state' is never opened
(https://github.com/google-research/t5x, t5x/checkpoints.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization, traverse_util

from specdec.checkpoints import arrays, directory, tree
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.directory import Vocabulary
from specdec.checkpoints.errors import CheckpointError
from specdec.common.file_names import own_file
from specdec.models.contract.family import Config
from specdec.types import PyTree

_VERSIONS = (2, 3)  # 3 differs in that bfloat16 is written as such
_TARGET = "target"
_RECORD = "checkpoint"  # the msgpack file


def native(folder: Location) -> dict[str, arrays.Source]:
    """Returns the model's arrays, by name, in a checkpoint that T5X's `Checkpointer` wrote.

    A msgpack file has the tree of arrays. Small arrays are in that file; for a large one it names a
    zarr folder.
    """
    file = folder / _RECORD
    try:
        contents = serialization.msgpack_restore(file.read_bytes())
        version, target = contents["version"], contents["optimizer"][_TARGET]
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{file} has version {version} of T5X's format and only {_VERSIONS} can be read; "
                "save it with a newer T5X"
            )
        leaves = traverse_util.flatten_dict(target, sep="/", is_leaf=_is_leaf)
        return {name: _source(leaf, folder) for name, leaf in leaves.items()}
    except CheckpointError:
        raise
    except Exception as error:  # msgpack and trees of other kinds raise many types
        raise CheckpointError(
            f"{file} is not the msgpack file of a T5X checkpoint with a model in it "
            f"({error!r:.200}); copy the checkpoint again"
        ) from error


def with_orbax(folder: Location) -> dict[str, arrays.Spec]:
    """Returns the model's arrays, by name, as T5X's `OrbaxCheckpointManagerInterface` wrote them.

    The whole train state is in an OCDBT database. Older checkpoints have a folder for each array,
    such as 'target.decoder.decoder_norm.scale'.
    """
    state = folder / "state"
    if (state / "manifest.ocdbt").is_file():
        sources = arrays.ocdbt(state)
    else:
        sources = {entry.name.replace(".", "/"): _folder(entry) for entry in state.iterdir()}
    prefix = f"{_TARGET}/"
    sources = {
        name.removeprefix(prefix): source
        for name, source in sources.items()
        if name.startswith(prefix)
    }
    if not sources:
        raise CheckpointError(f"{folder} has no model: nothing is stored under {_TARGET!r}")
    return sources


def write(folder: Path, params: PyTree, config: Config, vocabulary: Vocabulary | None) -> None:
    """Writes the native format, at step 0 and without optimizer state, into a new `folder`.

    T5X ignores the `config.json` that is written next to it.
    """
    folder.mkdir()
    leaves = tree.flatten(params)
    paths = {name: f"{_TARGET}.{name.replace('/', '.')}" for name in leaves}
    specs = arrays.write_all({paths[name]: leaf for name, leaf in leaves.items()}, folder)
    target = tree.unflatten({name: specs[path] for name, path in paths.items()})
    state = {"step": np.int32(0)}
    contents = {"version": _VERSIONS[-1], "optimizer": {_TARGET: target, "state": state}}
    directory.describe(folder, config, vocabulary)
    (folder / _RECORD).write_bytes(serialization.msgpack_serialize(contents))


def _is_leaf(keys: object, value: object) -> bool:
    return not isinstance(value, dict) or {"driver", "kvstore"} <= value.keys()


def _source(leaf: Any, folder: Location) -> arrays.Source:
    if isinstance(leaf, np.ndarray):
        return leaf
    # The path is relative to the checkpoint, wherever that was written (often a bucket). Before
    # TensorStore 0.1.14 it was a field of the array, not of its kvstore.
    path = leaf["kvstore"].get("path") or leaf.get("path")
    return arrays.spec(arrays.folder(folder / own_file(folder / _RECORD, path, CheckpointError)))


def _folder(directory: Location) -> arrays.Spec:
    """Returns the specification of the zarr array in a folder."""
    is_newer = (directory / "zarr.json").is_file()
    return arrays.spec(arrays.folder(directory), "zarr3" if is_newer else "zarr")
