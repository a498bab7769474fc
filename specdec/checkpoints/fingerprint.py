"""A fingerprint of a checkpoint, made without reading all of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from specdec.checkpoints import model_card
from specdec.checkpoints.cloud_storage import BucketPath
from specdec.checkpoints.directory import locate

_SAMPLE = 1 << 16  # bytes at each end of a file


def fingerprint(path: str | os.PathLike) -> str:
    """Returns sixteen hexadecimal digits that change with a checkpoint's files.

    They depend on names and sizes of the files, and on the first and last 64 KiB of each. The
    checkpoint's path and its model card are left out. For a checkpoint in a bucket, they depend
    only on its address. A change in the middle of a large file is not detected. The fingerprint
    distinguishes models and training steps; it does not detect damage.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.

    Raises:
      CheckpointError: there is no checkpoint.
    """
    directory = locate(path).directory
    digest = hashlib.sha256()
    if isinstance(directory, BucketPath):
        digest.update(str(directory).encode())
        return digest.hexdigest()[:16]
    card = directory / model_card.FILE  # `distill` adds figures to it
    for file in sorted(file for file in directory.rglob("*") if file.is_file() and file != card):
        name = file.relative_to(directory).as_posix()
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        digest.update(_ends(file))
    return digest.hexdigest()[:16]


def _ends(file: Path) -> bytes:
    with file.open("rb") as stream:
        first = stream.read(_SAMPLE)
        stream.seek(max(len(first), file.stat().st_size - _SAMPLE))
        return first + stream.read()
