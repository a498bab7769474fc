"""Gin files by name: which ones exist, where they are, and the macros that they set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from specdec.common import gin_text, resources, values
from specdec.common.gin_text import Statement
from specdec.common.values import UsageError


class Own(str):
    """The name, or the absolute path, of a gin file that specdec chose, not the user.

    It and its includes are looked for in the package only. Its folder is not added to `sys.path`.
    """


def macros(path: str | os.PathLike) -> list[Statement]:
    """Returns the macros that a gin file sets itself, in file order, without those of includes."""
    return [statement for statement in gin_text.statements(_text(path)) if statement.is_macro]


def headings(path: str | os.PathLike) -> dict[str, str]:
    """Returns each macro's heading in a gin file: the last comment of one word before the macro."""
    by_macro, heading = {}, ""
    for line in _text(path).splitlines():
        if title := re.fullmatch(r"# ([A-Z][a-z]+)", line):
            heading = title[1]
        elif macro := re.match(r"([A-Z][A-Z0-9_]*) =", line):
            by_macro[macro[1]] = heading
    return by_macro


def summary(path: str | os.PathLike) -> str:
    """Returns the first sentence of the comment with which a gin file begins."""
    return gin_text.summary(_text(path))


def _text(path: str | os.PathLike) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


def names(folders: Iterable[str | os.PathLike], under: str = "") -> list[str]:
    """Returns the gin files below `under` in each folder, as sorted paths relative to it."""
    return sorted(
        {
            file.relative_to(folder).as_posix()
            for folder in map(Path, folders)
            for file in (folder / under).rglob("*.gin")
        }
    )


def own_folders() -> list[Path]:
    """Returns the folders of the gin files that ship with the project."""
    return [resources.folder("gin"), resources.folder("configs")]


def own_names() -> list[str]:
    """Returns the names of the gin files that ship with the project, relative to `own_folders`."""
    return names(own_folders())


def all_macros(files: Iterable[str]) -> set[str]:
    """Returns the names of the macros that files in gin/ and existing files of `files` set."""
    folder = resources.folder("gin")
    paths = [*(folder / name for name in names([folder])), *filter(os.path.isfile, files)]
    return {macro.name for file in paths for macro in macros(file)}


def setting(macro: str) -> str | None:
    """Returns the name of the first file in gin/ that sets a macro; None if there is none."""
    folder = resources.folder("gin")
    files = (name for name in names([folder]) if macro in (m.name for m in macros(folder / name)))
    return next(files, None)


def path(name: str, folders: Iterable[str | os.PathLike] = ()) -> Path:
    """Returns the path of an existing gin file, searched for in the folders and then in gin/."""
    candidates = (Path(folder) / name for folder in [*folders, resources.folder("gin")])
    return next(filter(Path.is_file, candidates))


def found(file: str, folders: Sequence[str], where: str = "") -> str:
    """Returns the path of a gin file, or raises a UsageError that begins with `where`."""
    if (path := path_of(file, folders)) is not None:
        return path
    searched = (str(folder) or "." for folder in (*folders, *own_folders()))
    hint = _did_you_mean(file) or "; check the name, or add its folder with --gin_search_paths"
    looked_in = ", ".join(dict.fromkeys(searched))
    raise UsageError(f"{where}gin file {file} not found in {looked_in}{hint}")


def path_of(file: str, folders: Sequence[str]) -> str | None:
    """Returns the path of a gin file, or None; the project's folders are searched last."""
    for folder in () if isinstance(file, Own) else folders:
        if os.path.isfile(path := os.path.join(folder, file)):
            return Own(path) if _is_own(path) else path
    path = resources.gin_file(file)
    return None if path is None else Own(path)


def _is_own(path: str) -> bool:
    """Returns whether a path is inside the folders that ship with the project."""
    return any(
        Path(os.path.realpath(path)).is_relative_to(os.path.realpath(x)) for x in own_folders()
    )


def _did_you_mean(name: str) -> str:
    """Returns a hint with similar names of gin files, which are compared without ".gin"."""
    known = (own_name.removesuffix(".gin") for own_name in own_names())
    return values.did_you_mean(name.removesuffix(".gin"), known).replace("?", ".gin?")
