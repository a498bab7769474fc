"""Saves and loads the files of a table."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypedDict

import jax
import numpy as np
from jax.sharding import Sharding
from msgspec import Meta

from specdec import tasks
from specdec.checkpoints.checksums import checksum, damage
from specdec.common import records
from specdec.common.file_names import own_file
from specdec.common.json_values import parsed
from specdec.tasks import LoadedVocabulary
from specdec.types import Array, Table

FILE = "table.json"
FORMAT = 1


class TableError(ValueError):
    """A table cannot be used; the message is one line with the remedy."""


def save(
    path: str | os.PathLike,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    vocabulary: LoadedVocabulary | None = None,
) -> None:
    """Writes a table, which appears under its name only when it is complete.

    Args:
      path: the folder to make.
      kind: one of `KINDS`, or 'laws'.
      arrays: the arrays by name.
      vocabulary: the vocabulary of the table's texts, which a run with the table must have too.

    Raises:
      TableError: the path exists.
    """
    path = check_output(path)
    record = {
        "format": FORMAT,
        "kind": kind,
        "vocabulary": None if vocabulary is None else tasks.digest(vocabulary),
        "arrays": {
            name: {"shape": array.shape, "dtype": array.dtype.name, "crc32": checksum(array)}
            for name, array in arrays.items()
        },
    }
    with records.complete_folder(path) as folder:
        folder.mkdir()
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        (folder / FILE).write_text(f"{json.dumps(record, indent=1)}\n", encoding="utf-8")


def check_output(path: str | os.PathLike) -> Path:
    """Returns the absolute path of a table that can be made.

    Args:
      path: the folder to make.

    Raises:
      TableError: the path exists.
    """
    folder = Path(os.path.abspath(Path(path).expanduser()))
    if folder.exists():
        raise TableError(f"{path} exists; give a new folder, or remove this one first")
    return folder


def load(
    path: str | os.PathLike,
    table: Table,
    *,
    sharding: Sharding | None = None,
    checksums: bool = True,
) -> dict[str, Array]:
    """Returns the arrays of a table on a device; its files are mapped, not copied first.

    Args:
      path: the folder.
      table: the kind of table that is expected.
      sharding: the sharding of each array, None for the default device.
      checksums: whether arrays are compared with their checksums.

    Raises:
      TableError: the table does not exist, is of another kind, or is damaged.
    """
    arrays = mapped(path, table, checksums=checksums)
    return {name: jax.device_put(array, sharding) for name, array in arrays.items()}


def mapped(
    path: str | os.PathLike, table: Table, *, checksums: bool = True
) -> dict[str, np.ndarray]:
    """Returns the arrays of a table, mapped into memory.

    Args:
      path: the folder.
      table: the kind of table that is expected.
      checksums: whether arrays are compared with their checksums.

    Raises:
      TableError: the table does not exist, is of another kind, or is damaged.
    """
    arrays = {}
    for name, described in _record(path, table)["arrays"].items():
        array = _mapped(path, name, described)
        recorded = {name: described["crc32"]} if checksums else {}
        if wrong := damage(name, array, recorded):
            raise TableError(f"{path}: {wrong}; make the table again")
        arrays[name] = array
    return arrays


def shapes(
    path: str | os.PathLike, table: Table, *, sharding: Sharding | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of the result of `load`.

    Args:
      path: the folder.
      table: the kind of table that is expected.
      sharding: the sharding of each array.

    Raises:
      TableError: the table does not exist, is of another kind, or is damaged.
    """
    return {
        name: jax.ShapeDtypeStruct(tuple(described["shape"]), described["dtype"], sharding=sharding)
        for name, described in _record(path, table)["arrays"].items()
    }


def check_vocabulary(path: str | os.PathLike, table: Table, vocabulary: LoadedVocabulary) -> None:
    """Raises TableError for a table that was made from another vocabulary's ids.

    Args:
      path: the folder.
      table: the kind of table that is expected.
      vocabulary: the run's vocabulary.
    """
    made_of = _record(path, table)["vocabulary"]
    if made_of is not None and made_of != tasks.digest(vocabulary):
        raise TableError(
            f"the table {path} was made with another vocabulary than the run's; make one of texts "
            "of this run's target"
        )


def fingerprint(path: str | os.PathLike, table: Table) -> str:
    """Returns sixteen hexadecimal digits that change with the table's arrays.

    Args:
      path: the folder.
      table: the kind of table that is expected.
    """
    arrays = _record(path, table)["arrays"]
    sums = "".join(f"{name}{arrays[name]['crc32']}" for name in sorted(arrays))
    return hashlib.sha256(sums.encode()).hexdigest()[:16]


class _Described(TypedDict):
    shape: list[Annotated[int, Meta(ge=0)]]
    dtype: str
    crc32: str


class _Record(TypedDict):
    """The file that describes the arrays of a table."""

    format: int
    kind: str
    vocabulary: str | None  # its digest
    arrays: dict[str, _Described]


def _record(path: str | os.PathLike, table: Table) -> _Record:
    file = Path(path) / FILE
    try:
        record = parsed(file.read_bytes(), _Record)
    except OSError as error:
        raise TableError(
            f"{path} is no table ({FILE}: {error.strerror}); make one with specdec train "
            f"--table={table.kind}"
        ) from error
    except ValueError as error:
        raise TableError(f"{file} {error}; make the table again") from error
    if record["format"] != FORMAT:
        raise TableError(f"{file} is not of format {FORMAT}; make the table again")
    if record["kind"] != table.kind:
        raise TableError(
            f"{path} is a table of kind {record['kind']} and the run needs {table.kind}; "
            f"make one with specdec train --table={table.kind}"
        )
    for name in record["arrays"]:
        own_file(file, name, TableError)
    return record


def _mapped(path: str | os.PathLike, name: str, described: _Described) -> np.ndarray:
    file = Path(path) / f"{name}.npy"
    try:
        array = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise TableError(f"cannot read {file} ({error}); make the table again") from error
    if list(array.shape) != list(described["shape"]) or array.dtype != described["dtype"]:
        raise TableError(
            f"{file} is {array.dtype}{list(array.shape)} and {FILE} says "
            f"{described['dtype']}{list(described['shape'])}; make the table again"
        )
    return array
