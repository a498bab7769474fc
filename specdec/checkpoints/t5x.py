"""T5X's two formats: where the arrays of the model are. Optimizer state is never opened.

Both store a train state with the model under 'target' and the optimizer under 'state'
(https://github.com/google-research/t5x, t5x/checkpoints.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization, traverse_util

from specdec.checkpoints import arrays
from specdec.checkpoints.errors import CheckpointError

_VERSIONS = (2, 3)


def native(directory: Path) -> dict[str, arrays.KvStore | np.ndarray]:
    """`Checkpointer`'s format: a msgpack tree whose large leaves name a zarr folder beside it.

    Small leaves are in the msgpack file itself.
    """
    file = directory / "checkpoint"
    try:
        contents = serialization.msgpack_restore(file.read_bytes())
        version, target = contents["version"], contents["optimizer"]["target"]
    except Exception as error:  # msgpack raises many types on a file that is not msgpack
        raise CheckpointError(
            f"{file} is not the msgpack file of a T5X checkpoint with a model in it ({error!r}); "
            "copy the checkpoint again"
        ) from error
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{file} has version {version} of T5X's format and only {_VERSIONS} can be read; "
            "save it with a newer T5X"
        )
    leaves = traverse_util.flatten_dict(target, sep="/", is_leaf=_is_leaf)
    return {name: _source(leaf, directory) for name, leaf in leaves.items()}


def with_orbax(directory: Path) -> dict[str, arrays.KvStore]:
    """`OrbaxCheckpointManagerInterface`'s format: the whole train state in an OCDBT database."""
    state = arrays.ocdbt(directory / "state")
    sources = {
        name.removeprefix("target/"): source
        for name, source in state.items()
        if name.startswith("target/")
    }
    if not sources:
        raise CheckpointError(f"{directory} has no model: nothing is stored under 'target'")
    return sources


def _is_leaf(keys: Any, value: Any) -> bool:
    return not isinstance(value, dict) or {"driver", "kvstore"} <= value.keys()


def _source(leaf: Any, directory: Path) -> arrays.KvStore | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    # The path is relative to the checkpoint, wherever that was written (often a bucket). Before
    # TensorStore 0.1.14 it was a field of the array, not of its kvstore.
    path = leaf["kvstore"].get("path") or leaf["path"]
    return arrays.folder(directory / path)
