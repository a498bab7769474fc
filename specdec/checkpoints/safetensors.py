"""The safetensors format: a JSON header, then the bytes of the arrays one after another.

  8 bytes: length of the header, little-endian | header, padded with spaces | data

The header maps an array's name to its dtype, shape and place in the data
(https://huggingface.co/docs/safetensors). Each name occurs once, and the arrays cover the data
without gaps or overlaps, as the library of that name requires too. `read` maps each array into
memory separately. Slicing an array reads its data, and deleting the array releases the memory.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.errors import CheckpointError
from specdec.common.values import is_integer

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The dtypes of masks and positions, which some files have and which families leave out.
_OTHERS = {f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}
_OTHERS |= {f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
_OTHERS |= {"BOOL": np.dtype(bool)}
_METADATA = "__metadata__"
_ALIGNMENT = 8  # bytes, of the data
_HEADER_BYTES = 10**8  # the longest header that the library reads


class _Place(NamedTuple):
    """The description of an array in the header."""

    begin: int  # of its bytes in the data
    end: int
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


def read(file: Path) -> dict[str, np.ndarray]:
    """Returns every array of the file by name, as a read-only memory map."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        content = stream.read(length) if length <= _HEADER_BYTES else b""
    header = strict_json(content, f"the header of {file}")
    places = sorted(_place(file, *item) for item in header.items() if item[0] != _METADATA)
    start, end = 8 + length, 0
    for entry in places:
        if entry.begin != end or entry.end - end != math.prod(entry.shape) * entry.dtype.itemsize:
            raise CheckpointError(
                f"{entry.name} in {file} is {entry.dtype}{list(entry.shape)} at bytes "
                f"{entry.begin} to {entry.end}, and the array before it ends at {end}: they do not "
                "fit; copy it again"
            )
        end = entry.end
        if start + end > size:
            raise CheckpointError(f"{file} is cut short: {entry.name} is missing; copy it again")
    if start + end < size:
        raise CheckpointError(
            f"{file} has {size - start - end} bytes after its last array; copy it again"
        )
    return {entry.name: _map(file, entry, start) for entry in places}


def strict_json(content: bytes, what: str) -> dict[str, object]:
    """Returns the JSON object in `content`; raises CheckpointError if a name occurs twice in it."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        record = dict(pairs)
        if len(record) < len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise CheckpointError(f"{what} has {twice!r} twice; copy it again")
        return record

    try:
        record = json.loads(content.decode("utf-8-sig"), object_pairs_hook=once)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not JSON; copy it again") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{what} is no JSON object; copy it again")
    return record


def write(
    file: Path, specs: Mapping[str, jax.ShapeDtypeStruct], array: Callable[[str], np.ndarray]
) -> None:
    """Writes the arrays that `specs` describes; `array` returns the array of a name."""
    header: dict[str, object] = {_METADATA: {"format": "pt"}}  # transformers insists on a format
    end = 0
    for name, spec in specs.items():
        if spec.dtype not in _NAMES:
            raise CheckpointError(f"{name} is {spec.dtype}; write one of {', '.join(_DTYPES)}")
        begin, end = end, end + size(spec)
        described = {"shape": spec.shape, "data_offsets": (begin, end)}
        header[name] = {"dtype": _NAMES[spec.dtype], **described}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in specs:
            # As bytes: Python's buffers know no bfloat16.
            stream.write(np.ascontiguousarray(array(name)).reshape(-1).view(np.uint8).data)


def size(spec: jax.ShapeDtypeStruct) -> int:
    """Returns the size of an array's data, in bytes."""
    return math.prod(spec.shape) * spec.dtype.itemsize


def _place(file: Path, name: str, entry: object) -> _Place:
    """Returns the description of an array in the header; raises CheckpointError if it is wrong."""
    entry = entry if isinstance(entry, dict) else {}
    stored, *rows = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    shape, offsets = (
        row if isinstance(row, list) and all(is_integer(n, 0) for n in row) else None
        for row in rows
    )
    if not isinstance(stored, str) or shape is None or offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{file} does not say where {name!r} is; copy it again")
    dtype = (_DTYPES | _OTHERS).get(stored)
    if dtype is None:
        # Floating types of eight bits and less mean something only with scales next to them.
        raise CheckpointError(
            f"{name} in {file} is {stored}, which is not read; "
            f"save the model again as one of {', '.join(_DTYPES)}"
        )
    return _Place(offsets[0], offsets[1], name, dtype, tuple(shape))


def _map(file: Path, entry: _Place, start: int) -> np.ndarray:
    try:
        if entry.begin == entry.end:  # a memory map cannot be empty
            return np.zeros(entry.shape, entry.dtype)
        return np.memmap(file, entry.dtype, "r", start + entry.begin, entry.shape)
    except (ValueError, OSError) as error:  # of shapes with too many axes, or of too many maps
        raise CheckpointError(f"cannot map {entry.name} of {file} ({error})") from error
