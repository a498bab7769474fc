"""The files of a Hugging Face directory: JSON, and arrays by name in one or more files."""

from __future__ import annotations

import fnmatch
import json
import pickle
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
    """Returns whether a directory has files of arrays."""
    return any((directory / name).is_file() for name in _WHERE)


def read(directory: Path) -> dict[str, np.ndarray]:
    """Returns a directory's arrays by name, mapped into memory: slicing them reads the data.

    If several files have an array of the same name, the index says which one is read.
    """
    files, places = _files(directory)
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        read_file = safetensors.read if file.endswith(".safetensors") else _read_pytorch
        for name, array in read_file(directory / file).items():
            if places.get(name, file) != file:
                continue
            if name in arrays or not name.isprintable():
                raise CheckpointError(
                    f"{directory / file} has an array {name!r}, which is no name or is in another "
                    "file too, and no index says which is read; copy the whole checkpoint"
                )
            arrays[name] = array
    if absent := sorted(places.keys() - arrays):
        raise CheckpointError(
            f"{directory / places[absent[0]]} lacks {len(absent)} arrays that the index says it "
            f"has ({', '.join(map(repr, absent[:3]))}); copy the whole checkpoint"
        )
    return arrays


def parts(directory: Path) -> list[str]:
    """Returns the names of the files that `read` reads in a directory."""
    return _files(directory)[0]


def _files(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the files that `read` reads, and the index: each array's file, {} without index."""
    main = next((name for name in _WHERE if (directory / name).is_file()), None)
    if main is None:
        raise CheckpointError(f"{directory} has none of {', '.join(_WHERE)}; copy it again")
    if not main.endswith(_INDEX):
        return [main], {}
    index = directory / main
    named = safetensors.strict_json(index.read_bytes(), str(index)).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise CheckpointError(
            f"{index} has no weight_map with the file of each array; copy it again"
        )
    files = sorted({own_file(index, name, CheckpointError) for name in named.values()})
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of the {len(files)} files that {index} names are missing "
            f"({', '.join(missing[:3])}); copy the whole checkpoint"
        )
    return files, named


def wanted(names: Collection[str]) -> list[str]:
    """Returns the files that `read` would read in a remote directory that has files `names`."""
    main = next((name for name in _WHERE if name in names), "")
    if not main.endswith(_INDEX):
        return [main] if main else []
    stem, dot, suffix = main.removesuffix(_INDEX).rpartition(".")
    shards = [name for name in names if fnmatch.fnmatch(name, f"{stem}-*{dot}{suffix}")]
    return [main, *shards]


def write(
    folder: Path, specs: Mapping[str, jax.ShapeDtypeStruct], array: Callable[[str], np.ndarray]
) -> None:
    """Writes the arrays of `specs`, which `array` returns by name, to files of at most 5 GB."""
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
    """Returns the object in a JSON file; raises CheckpointError if a value has a wrong type."""
    try:
        return parsed(file.read_bytes(), KINDS.get(file.name, dict))
    except ValueError as error:
        raise CheckpointError(f"{file} {error}; copy it again") from error


def write_json(file: Path, record: JsonObject) -> None:
    """Writes an object as indented JSON."""
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """Splits arrays' names into one list per file, of at most `_FILE_BYTES` or one larger array."""
    shards, room = [], 0
    for name, size in sizes.items():
        if size > room or not shards:
            shards.append([])
            room = _FILE_BYTES
        shards[-1].append(name)
        room -= size
    return shards


def _read_pytorch(file: Path) -> dict[str, np.ndarray]:
    """Returns a pickled state_dict's arrays by name, mapped into memory from PyTorch 1.6 on."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise CheckpointError(
            f"{file} is a PyTorch file and PyTorch is not installed; pip install torch, or save "
            "the model as safetensors"
        ) from error

    def view(name: object, tensor: Any) -> np.ndarray:
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{file} has {_kind(tensor)} under {name!r}, and only arrays with names are read; "
                "save model.state_dict() alone"
            )
        if "float8" in str(tensor.dtype):
            raise CheckpointError(
                f"{name} in {file} is {tensor.dtype}, which is not read; save the model again "
                "as float32, bfloat16 or float16"
            )
        tensor = tensor.detach()
        if tensor.dtype == torch.bfloat16:  # which PyTorch cannot convert to NumPy
            return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
        return tensor.numpy()

    try:
        mmap = zipfile.is_zipfile(file)
        tensors = torch.load(file, map_location="cpu", mmap=mmap, weights_only=True)
        if not isinstance(tensors, Mapping):
            raise CheckpointError(f"{file} has {_kind(tensors)}; save model.state_dict() alone")
        for name, inner in tensors.items():
            if isinstance(inner, Mapping) and any(
                isinstance(x, torch.Tensor) for x in inner.values()
            ):
                raise CheckpointError(
                    f"{file} has its arrays under {name!r}, as training scripts save them; save "
                    f"them alone, in Python torch.save(torch.load(FILE)[{name!r}], FILE)"
                )
        return {name: view(name, tensor) for name, tensor in tensors.items()}
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:  # its message suggests to load untrusted code
        raise CheckpointError(
            f"cannot read {file}: it is damaged, or has Python objects other than arrays, which "
            "are not read; copy it again, or save model.state_dict() alone"
        ) from error
    except Exception as error:  # pickle, zip and PyTorch raise many types on a damaged file
        reason = " ".join(f"{error!r}".split("\\n")[0].split())[:200]
        raise CheckpointError(f"cannot read {file} ({reason}); copy it again") from error


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
