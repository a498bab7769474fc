"""Arrays on disk, through TensorStore: first their shapes, then their data.

T5X's two formats and Orbax all keep one zarr array per parameter, so one reader serves them.
Opening an array reads its shape, which is enough to compare a checkpoint with a model before any
data is read. Reading casts, and takes from disk only the pieces that the sharding puts on the
devices of this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts

from specdec.checkpoints import tree
from specdec.checkpoints.errors import CheckpointError
from specdec.types import Array, PyTree

KvStore = dict[str, Any]  # a TensorStore kvstore specification
_CONCURRENT = 16  # arrays in flight, which bounds host memory


def folder(directory: Path) -> KvStore:
    """The kvstore of a directory."""
    return {"driver": "file", "path": f"{directory}/"}


def ocdbt(directory: Path) -> dict[str, KvStore]:
    """The arrays in an OCDBT database (a few large files), as {name: kvstore}.

    Orbax joins the keys of the tree with dots; names here have slashes.
    """
    database = {"driver": "ocdbt", "base": folder(directory)}
    try:
        keys = [key.decode() for key in ts.KvStore.open(database).result().list().result()]
    except ValueError as error:
        raise CheckpointError(f"cannot read {directory}: {_line(error)}") from error
    folders = [key.removesuffix(".zarray") for key in keys if key.endswith("/.zarray")]
    return {path[:-1].replace(".", "/"): database | {"path": path} for path in folders}


def open_all(sources: Mapping[str, KvStore | np.ndarray], where: Path) -> dict[str, ts.TensorStore]:
    """Opens every array, which reads its shape and dtype and nothing else.

    Raises CheckpointError for an array that cannot be opened, or is not of a floating type.
    """
    pending = {
        name: ts.array(source) if isinstance(source, np.ndarray) else ts.open(_zarr(source))
        for name, source in sources.items()
    }
    stores = {}
    for name, store in pending.items():
        try:
            stores[name] = store if isinstance(store, ts.TensorStore) else store.result()
        except ValueError as error:
            raise CheckpointError(f"cannot open {name} in {where}: {_line(error)}") from error
        dtype = stores[name].dtype.numpy_dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise CheckpointError(
                f"{name} in {where} is {dtype}, and parameters must be floating; "
                "save the checkpoint again as float32 or bfloat16"
            )
    return stores


def read_all(
    stores: Mapping[str, ts.TensorStore], where: Path, dtype: Any, shardings: PyTree
) -> dict[str, Array]:
    """Reads every array, several at a time; see `checkpoints.load` for the arguments."""
    if shardings is not None:
        shardings = tree.flatten(jax.tree.broadcast(shardings, tree.unflatten(stores)))

    def read(name: str) -> Array:
        store = stores[name]

        def piece(index) -> np.ndarray:
            try:
                data = store[index].read().result()
            except ValueError as error:
                raise CheckpointError(
                    f"cannot read {name} in {where}: {_line(error)}; the copy may be incomplete"
                ) from error
            return data if dtype is None else data.astype(dtype, copy=False)

        if shardings is None:
            return jax.device_put(piece(...))
        return jax.make_array_from_callback(store.shape, shardings[name], piece)

    with ThreadPoolExecutor(_CONCURRENT) as pool:
        return dict(zip(stores, pool.map(read, stores), strict=True))


def _zarr(kvstore: KvStore) -> dict[str, Any]:
    # By default a chunk that was lost on the way reads as zeros.
    return {"driver": "zarr", "kvstore": kvstore, "open": True, "fill_missing_data_reads": False}


def _line(error: ValueError) -> str:
    return str(error).splitlines()[0]
