"""Checks of files and file names that a checkpoint or a task from any source contains."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PureWindowsPath

_POINTER = b"version https://git-lfs.github.com/spec/"

_OTHERS = {"d": "a folder", "p": "a pipe", "c": "a device", "b": "a device", "s": "a socket"}


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError unless a path is a regular file; reading a pipe or a device may never end."""
    kind = _OTHERS.get(stat.filemode(os.stat(path).st_mode)[0])
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, and not a regular file", os.fspath(path))


def own_file(
    record: object, name: object, error: type[ValueError], *, folders: bool = False
) -> str:
    """Returns the file name `name` of a record; raises `error` if it leaves the record's folder.

    `folders` allows subfolders. Windows separators and drives count on every system. Links may lead
    out, because the cache of the Hugging Face Hub consists of links.
    """
    path = PureWindowsPath(name if isinstance(name, str) else "")
    inside = path.parts and not path.anchor and ".." not in path.parts
    inside = inside and path.name.isprintable() and len(path.name) < 256  # a usable name
    if not inside or len(path.parts) > 1 and not folders:
        raise error(
            f"{record} names the file {name!r}, which is not {'inside' if folders else 'in'} its "
            "folder; move the file there, and correct the name"
        )
    return str(name)


def refuse_pointer(file: Path, error: type[ValueError]) -> None:
    """Raises `error` for a file that is only the pointer of Git LFS to an unfetched file."""
    with file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise error(
                f"{file} is a pointer of Git LFS, not the file itself; run `git lfs pull` in "
                f"{file.parent}"
            )
