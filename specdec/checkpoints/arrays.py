"""Opens, reads and writes the arrays of checkpoints.

T5X and Orbax store zarr arrays, which TensorStore reads; Hugging Face's files are memory-mapped.
Opening an array reads its shape, which is enough to compare a checkpoint with a model before any
data is read. Each process then reads only the data that its devices need, and casts it. It reads at
most 64 MiB concurrently, so the host holds little more than the parameters themselves.
"""

from __future__ import annotations

import collections
import math
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from jax.sharding import Sharding
from jax.typing import DTypeLike

from specdec.checkpoints import tree
from specdec.checkpoints.checksums import damage
from specdec.checkpoints.cloud_storage import BucketPath, Location
from specdec.checkpoints.errors import CheckpointError
from specdec.common import progress
from specdec.types import Array, PyTree

KvStore = dict[str, str]  # a TensorStore kvstore specification
Spec = dict[str, Any]  # a TensorStore specification of an array: its driver and kvstore
Source = Spec | np.ndarray
Opened = ts.TensorStore | np.ndarray
Index = tuple[slice, ...]
T = TypeVar("T")
Item = TypeVar("Item")

_IN_FLIGHT = 64 * 2**20  # bytes on disk of the arrays that are read or written at the same time
_CHUNK = 64 * 2**20  # bytes, at most, of a chunk of an array that is written; T5X's limit
_METADATA = 2**16  # bytes, at most, of the JSON that describes an array
_THREADS = 8
# By default, TensorStore reads a missing chunk as zeros.
_OPENED = {"open": True, "fill_missing_data_reads": False}
_INCOMPLETE = "the copy may be incomplete, make it again"


class Stored(NamedTuple):
    """An array on disk: one parameter, or the same parameter of several layers along `axis`."""

    data: Opened
    names: tuple[str, ...]  # the parameter's in layers 0, 1, .., which may be fewer than stored
    shape: tuple[int, ...]  # of one parameter; `data` may store its elements in another shape
    axis: int | None = None


def folder(directory: Location) -> KvStore:
    """Returns TensorStore's specification of the key-value store in a directory."""
    if isinstance(directory, BucketPath):
        return directory.kvstore()
    return {"driver": "file", "path": f"{directory}/"}


# The name of an array's metadata file: the driver that reads the array.
DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}


def spec(kvstore: KvStore, driver: str = "zarr") -> Spec:
    """Returns TensorStore's specification of the array in a key-value store."""
    return {"driver": driver, "kvstore": kvstore}


def ocdbt(directory: Location) -> dict[str, Spec]:
    """Returns {name: specification} of the arrays in an OCDBT database (a few large files).

    In the returned names, slashes replace the dots of Orbax's names.
    """
    database = {"driver": "ocdbt", "base": folder(directory)}
    try:
        keys = [key.decode() for key in ts.KvStore.open(database).result().list().result()]
    except ValueError as error:
        raise CheckpointError(f"cannot read {directory}: {_line(error)}; {_INCOMPLETE}") from error
    specs = {}
    for path, slash, file in (key.rpartition("/") for key in keys):
        if file in DRIVERS:
            kvstore = database | {"path": path + slash}
            specs[path.replace(".", "/")] = spec(kvstore, DRIVERS[file])
    return specs


def open_all(sources: Mapping[str, Source], where: Location) -> dict[str, Opened]:
    """Opens every array, which reads only its shape and dtype, and returns the arrays by name."""
    _check_metadata(sources, where)
    pending = {
        name: source if isinstance(source, np.ndarray) else ts.open(source | _OPENED)
        for name, source in sources.items()
    }
    opened = {}
    for name, array in pending.items():
        try:
            opened[name] = array if isinstance(array, np.ndarray) else array.result()
        except ValueError as error:
            raise CheckpointError(
                f"cannot open {name} in {where}: {_line(error)}; {_INCOMPLETE}"
            ) from error
        if not jnp.issubdtype(dtype := _dtype(opened[name]), jnp.floating):
            raise CheckpointError(
                f"{name} in {where} is {dtype}, and parameters must be floating; "
                "save the checkpoint again as float32 or bfloat16"
            )
        if isinstance(data := opened[name], ts.TensorStore):
            _check_size(data, f"{name} in {where}")
    return opened


def _check_metadata(sources: Mapping[str, Source], where: Location) -> None:
    """Raises CheckpointError if an array's JSON metadata is longer than `_METADATA`.

    TensorStore ends the process if the JSON has 100,000 nested brackets.
    """
    files = {driver: file for file, driver in DRIVERS.items()}
    specs = {name: source for name, source in sources.items() if not isinstance(source, np.ndarray)}
    try:
        stores = {name: ts.KvStore.open(spec["kvstore"]).result() for name, spec in specs.items()}
        read = {name: stores[name].read(files[spec["driver"]]) for name, spec in specs.items()}
        long = [name for name, pending in read.items() if len(pending.result().value) > _METADATA]
    except ValueError as error:
        raise CheckpointError(f"cannot read {where}: {_line(error)}; {_INCOMPLETE}") from error
    if long:
        raise CheckpointError(
            f"the description of {long[0]} in {where} has more than {_METADATA} bytes; "
            f"{_INCOMPLETE}"
        )


def _check_size(data: ts.TensorStore, what: str) -> None:
    """Raises CheckpointError if reading an array would reserve more memory than there is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    piece = tuple(side or 1 for side in data.chunk_layout.read_chunk.shape or ())
    array_bytes, piece_bytes = (
        math.prod(shape) * _dtype(data).itemsize for shape in (data.shape, piece)
    )
    if array_bytes > memory or piece_bytes > max(array_bytes, _CHUNK):
        raise CheckpointError(
            f"{what} has the shape {data.shape} in pieces of {piece}, which need "
            f"{max(array_bytes, piece_bytes) / 1e9:.0f} GB, more than the array or this machine "
            f"has; {_INCOMPLETE}"
        )


def read_all(
    stored: Iterable[Stored],
    where: Location,
    dtype: DTypeLike | None,
    shardings: PyTree,
    recorded: Mapping[str, str] = MappingProxyType({}),
    swapped: Collection[str] = (),
) -> dict[str, Array]:
    """Returns every parameter by name; `checkpoints.load` explains the arguments.

    The largest arrays are read first: when memory is almost full, only small ones are left.
    """
    stored = sorted(stored, key=_bytes, reverse=True)
    if shardings is not None:
        names = {name: 0 for array in stored for name in array.names}
        shardings = tree.flatten(jax.tree.broadcast(shardings, tree.unflatten(names)))

    def read(array: Stored) -> dict[str, Array]:
        as_stored = array.shape == array.data.shape
        box = _needed(array, shardings) if as_stored else _whole(array.shape)
        if box == _whole(array.shape) and recorded.keys() & array.names:
            data = fetch_checked(array, where, recorded)
            data = data.astype(dtype or data.dtype, copy=False)
        else:
            wide = _dtype(array.data) == np.float64
            data = fetch_named(array, where, box if as_stored else None, None if wide else dtype)
        if data.dtype == np.float64:
            data = _narrowed(data, dtype or data.dtype, array.names[0], where)
        layers = [data] if array.axis is None else np.moveaxis(data, array.axis, 0)
        placed = {}
        for name, part in zip(array.names, layers, strict=False):
            part = part if as_stored else part.reshape(array.shape)
            part = part.T if name in swapped else part
            placed[name] = _place(part, array.shape, box, shardings and shardings[name])
        return jax.block_until_ready(placed)

    params = {}
    with progress.bar(f"reading {where.name}", sum(map(_bytes, stored)), "B") as bar:
        for array, placed in zip(stored, _windowed(read, stored, _bytes), strict=True):
            params |= placed
            bar.update(_bytes(array))
    return params


def overflows(data: np.ndarray, dtype: DTypeLike = np.float32) -> int:
    """Counts the finite numbers of float64 data beyond the range of `dtype`; 0 for other data."""
    if data.dtype != np.float64:
        return 0
    largest = float(jnp.finfo(dtype).max)
    return int(np.count_nonzero(np.isfinite(data) & (np.abs(data) > largest)))


def _narrowed(data: np.ndarray, dtype: DTypeLike, name: str, where: Location) -> np.ndarray:
    """Returns float64 data as `dtype`, which is float32 if JAX has no float64.

    Raises CheckpointError if a number becomes infinite.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if count := overflows(data, dtype):
        raise CheckpointError(
            f"{name} in {where} has {count} numbers that {dtype} cannot hold; save the model in "
            f"{dtype}, and look for why its numbers are so large"
        )
    return data.astype(dtype, copy=False)


def fetch_named(
    array: Stored, where: Location, box: Index | None = None, dtype: DTypeLike | None = None
) -> np.ndarray:
    """Returns the result of `fetch`; raises CheckpointError with the array's name if it fails."""
    try:
        return fetch(array.data, box, dtype)
    except ValueError as error:
        raise CheckpointError(
            f"cannot read {array.names[0]} in {where}: {_line(error)}; {_INCOMPLETE}"
        ) from error


def fetch_checked(array: Stored, where: Location, recorded: Mapping[str, str]) -> np.ndarray:
    """Returns a whole array; raises CheckpointError if its checksum is not the recorded one."""
    data = fetch_named(array, where)
    if wrong := damage(array.names[0], data, recorded):
        raise CheckpointError(
            f"checkpoint {where} is damaged: {wrong}; copy it again (`specdec check` reads all of "
            "it, and without checksums it loads unchecked)"
        )
    return data


def write_all(arrays: Mapping[str, Array], directory: Location) -> dict[str, Spec]:
    """Writes a zarr folder for each array, and returns their specifications, by name."""

    def write(item: tuple[str, Array]) -> tuple[str, Spec]:
        path, array = item
        metadata = {
            "shape": list(array.shape),
            "chunks": chunks(array.shape, array.dtype.itemsize),
            "compressor": {"id": "gzip", "level": 1},
        }
        spec = {"driver": "zarr", "dtype": array.dtype.name, "metadata": metadata}
        kvstore = folder(directory / path)
        ts.open(spec | {"kvstore": kvstore}, create=True).result().write(np.asarray(array)).result()
        return path, spec | {"kvstore": {"driver": "file", "path": f"{path}/"}}

    return dict(_windowed(write, list(arrays.items()), lambda item: item[1].nbytes))


def chunks(shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Returns the shape of chunks: the longest side is halved until a chunk fits in `_CHUNK`."""
    sides = list(shape)
    while math.prod(sides) * itemsize > _CHUNK:
        longest = sides.index(max(sides))
        sides[longest] = -(-sides[longest] // 2)
    return sides


def fetch(data: Opened, box: Index | None = None, dtype: DTypeLike | None = None) -> np.ndarray:
    """Returns a copy of an array, or of its slice `box`, as `dtype` or else in its stored dtype.

    The copy keeps the memory layout of the file: JAX transposes much faster than NumPy.
    """
    dtype = dtype or _dtype(data)
    part = data[box or ...]
    if isinstance(part, ts.TensorStore):
        return ts.cast(part, np.dtype(dtype)).read().result()
    copy = np.array(part, dtype)
    _release(part)
    return copy


def _needed(array: Stored, shardings: Mapping[str, Sharding] | None) -> Index:
    """Returns the smallest slice of the parameter that has all shards of this process's devices."""
    if shardings is None:
        return _whole(array.shape)
    (name,) = array.names
    indices = shardings[name].addressable_devices_indices_map(array.shape).values()
    box = []
    for side, parts in zip(array.shape, zip(*indices, strict=True), strict=True):
        bounds = [part.indices(side)[:2] for part in parts]
        box.append(slice(min(start for start, _ in bounds), max(stop for _, stop in bounds)))
    return tuple(box)


def _whole(shape: tuple[int, ...]) -> Index:
    return tuple(slice(0, n) for n in shape)


def _place(
    part: np.ndarray, shape: tuple[int, ...], box: Index, sharding: Sharding | None
) -> Array:
    """Returns a parameter of a shape on its devices, from `part`, which is its slice `box`."""
    if sharding is None:
        return jax.device_put(part)

    def piece(index: Index | None) -> np.ndarray:
        assert index is not None
        return part[_within(box, index, shape)]

    return jax.make_array_from_callback(shape, sharding, piece)


def _within(box: Index, index: Index, shape: tuple[int, ...]) -> Index:
    """Converts an index into an array to an index into its slice `box`, which contains it."""
    bounds = [side.indices(n)[:2] for side, n in zip(index, shape, strict=True)]
    starts = [side.start for side in box]
    return tuple(slice(a - x, b - x) for (a, b), x in zip(bounds, starts, strict=True))


def _windowed(
    function: Callable[[Item], T], items: Iterable[Item], size: Callable[[Item], int]
) -> Iterator[T]:
    """Yields `function` of each item, in order, computing several items concurrently.

    The sizes of these items add up to at most `_IN_FLIGHT` bytes; a larger item is processed alone.
    """
    flying: collections.deque = collections.deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for item in items:
            while flying and sum(n for n, _ in flying) + size(item) > _IN_FLIGHT:
                yield flying.popleft()[1].result()
            flying.append((size(item), pool.submit(function, item)))
        while flying:
            yield flying.popleft()[1].result()


def _release(view: np.ndarray) -> None:
    """Releases the memory of a mapped file's pages; reading them again is still possible."""
    base: object = view
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def _bytes(array: Stored) -> int:
    return math.prod(array.data.shape) * _dtype(array.data).itemsize


def _dtype(data: Opened) -> np.dtype:
    return data.dtype.numpy_dtype if isinstance(data, ts.TensorStore) else data.dtype


def _line(error: ValueError) -> str:
    return str(error).splitlines()[0].partition(" [tensorstore_spec")[0][:500]
