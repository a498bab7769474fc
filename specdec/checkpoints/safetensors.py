"""The safetensors format: a JSON header, then the bytes of the arrays one after another.

  8 bytes: length of the header, little-endian | header, padded with spaces | data

The header maps a name to its dtype, shape and place in the data
(https://huggingface.co/docs/safetensors). Reading maps each array into memory on its own. Nothing
is read until an array is sliced, and memory is released when the array is dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints.errors import CheckpointError
from specdec.common.json_values import JsonObject

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 8  # bytes, of the data


def read(file: Path) -> dict[str, np.ndarray]:
    """Returns every array of the file, as a read-only memory map.

    Raises:
      CheckpointError: the file is of another kind, truncated, or holds integers.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        # A Git LFS pointer is text; read as a length, its first bytes are beyond any size.
        whole = 0 < length < file.stat().st_size
        content = stream.read(length) if whole else b""
    try:
        header = json.loads(content)
    except ValueError as error:
        raise CheckpointError(
            f"{file} is not a safetensors file; if Git LFS left a pointer in its place, run "
            "`git lfs pull`, else copy it again"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} has a header that is no JSON object; copy it again")
    return {
        name: _map(file, name, entry, 8 + length)
        for name, entry in header.items()
        if name != _METADATA
    }


def write(
    file: Path, specs: Mapping[str, jax.ShapeDtypeStruct], array: Callable[[str], np.ndarray]
) -> None:
    """Writes the arrays that `specs` describes; `array` returns them one at a time, by name."""
    header: dict[str, object] = {_METADATA: {"format": "pt"}}  # transformers insists on a format
    end = 0
    for name, spec in specs.items():
        if spec.dtype not in _NAMES:
            raise CheckpointError(f"{name} is {spec.dtype}; write one of {', '.join(_DTYPES)}")
        begin, end = end, end + size(spec)
        place = {"shape": spec.shape, "data_offsets": (begin, end)}
        header[name] = {"dtype": _NAMES[spec.dtype], **place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in specs:
            # As bytes: Python's buffers know no bfloat16.
            stream.write(np.ascontiguousarray(array(name)).reshape(-1).view(np.uint8).data)


def size(spec: jax.ShapeDtypeStruct) -> int:
    """Returns the bytes of the data."""
    return math.prod(spec.shape) * spec.dtype.itemsize


def _map(file: Path, name: str, entry: JsonObject, start: int) -> np.ndarray:
    try:
        stored, shape, begin = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"][0]
    except (LookupError, TypeError) as error:
        raise CheckpointError(f"{file} does not say where {name} is; copy it again") from error
    dtype = _DTYPES.get(stored)
    if dtype is None:
        # Floating types of eight bits and less mean something only with scales next to them.
        narrow = str(stored).startswith("F")
        why = "which is not read" if narrow else "and parameters must be floating"
        raise CheckpointError(
            f"{name} in {file} is {stored}, {why}; "
            f"save the model again as one of {', '.join(_DTYPES)}"
        )
    try:
        return np.memmap(file, dtype, "r", start + begin, shape)
    except ValueError as error:
        raise CheckpointError(f"{file} is cut short: {name} is missing; copy it again") from error
