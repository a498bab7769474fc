"""The files of a Hugging Face directory: JSON, and arrays by name in one or more files."""

from __future__ import annotations

import fnmatch
import json
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import safetensors
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.kinds import KINDS
from specdec.common.file_names import own_file
from specdec.common.json_values import JsonObject, parsed

CONFIG = "config.json"
_SAFETENSORS, _PYTORCH, _INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
_WHERE = (_SAFETENSORS, _SAFETENSORS + _INDEX, _PYTORCH, _PYTORCH + _INDEX)  # the first is read
_FILE_BYTES = 5 * 10**9  # the most in one file that is written


def are_in(directory: Path) -> bool:
    """Returns whether there are files of arrays."""
    return any((directory / name).is_file() for name in _WHERE)


def read(directory: Path) -> dict[str, np.ndarray]:
    """Returns every array, mapped into memory: data is read when it is sliced.

    Raises:
      CheckpointError: a file is missing or damaged, or PyTorch is needed and not installed.
    """
    first, *_ = files = parts(directory)
    read_file = safetensors.read if first.endswith(".safetensors") else _read_pytorch
    return {name: array for file in files for name, array in read_file(directory / file).items()}


def parts(directory: Path) -> list[str]:
    """Returns the files that `read` reads.

    Raises:
      CheckpointError: a file is missing, or is not in the directory.
    """
    found = next((name for name in _WHERE if (directory / name).is_file()), None)
    if found is None:
        raise CheckpointError(f"{directory} has none of {', '.join(_WHERE)}; copy it again")
    if not found.endswith(_INDEX):
        return [found]
    named = read_json(index := directory / found).get("weight_map", {}).values()
    files = sorted({own_file(index, name, CheckpointError) for name in named})
    missing = [name for name in files if not (directory / name).is_file()]
    if missing or not files:
        raise CheckpointError(
            f"{len(missing)} of the {len(files)} files that {index} names are missing "
            f"({', '.join(missing[:3])}); copy the whole checkpoint"
        )
    return files


def wanted(names: Collection[str]) -> list[str]:
    """Returns the files of arrays that `read` would read from a remote directory."""
    found = next((name for name in _WHERE if name in names), "")
    if not found.endswith(_INDEX):
        return [found] if found else []
    stem, dot, suffix = found.removesuffix(_INDEX).rpartition(".")
    shards = [name for name in names if fnmatch.fnmatch(name, f"{stem}-*{dot}{suffix}")]
    return [found, *shards]


def write(
    folder: Path, specs: Mapping[str, jax.ShapeDtypeStruct], array: Callable[[str], np.ndarray]
) -> None:
    """Writes safetensors of at most 5 GB; `array` returns the arrays of `specs`, one at a time."""
    shards = _shards({name: safetensors.size(spec) for name, spec in specs.items()})
    if len(shards) == 1:
        safetensors.write(folder / _SAFETENSORS, specs, array)
        return
    files = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors.write(folder / file, {name: specs[name] for name in shard}, array)
        files |= dict.fromkeys(shard, file)
    total = sum(map(safetensors.size, specs.values()))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    write_json(folder / (_SAFETENSORS + _INDEX), index)


def read_json(file: Location) -> dict[str, Any]:
    """Returns the object in a JSON file; raises CheckpointError unless it is as in `KINDS`."""
    try:
        return parsed(file.read_bytes(), KINDS.get(file.name, dict))
    except ValueError as error:
        raise CheckpointError(f"{file} {error}; copy it again") from error


def write_json(file: Path, record: JsonObject) -> None:
    """Writes an object as indented JSON."""
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """Splits names, in their order, into lists of at most _FILE_BYTES, or of one larger array."""
    shards, room = [], 0
    for name, size in sizes.items():
        if size > room or not shards:
            shards.append([])
            room = _FILE_BYTES
        shards[-1].append(name)
        room -= size
    return shards


def _read_pytorch(file: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a pickled state_dict. Files of PyTorch before 1.6 cannot be mapped."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise CheckpointError(
            f"{file} is a PyTorch file and PyTorch is not installed; pip install torch, or save "
            "the model as safetensors"
        ) from error

    def view(tensor: Any) -> np.ndarray:
        if tensor.dtype == torch.bfloat16:  # of which PyTorch makes no NumPy array
            return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
        return tensor.numpy()

    try:
        mmap = zipfile.is_zipfile(file)
        tensors = torch.load(file, map_location="cpu", mmap=mmap, weights_only=True)
        for name, tensor in tensors.items():
            if "float8" in str(tensor.dtype):
                raise CheckpointError(
                    f"{name} in {file} is {tensor.dtype}, which is not read; save the model again "
                    "as float32, bfloat16 or float16"
                )
        return {name: view(tensor.detach()) for name, tensor in tensors.items()}
    except CheckpointError:
        raise
    except Exception as error:  # pickle, zip and PyTorch raise many types on a damaged file
        raise CheckpointError(f"cannot read {file} ({error!r}); copy it again") from error
