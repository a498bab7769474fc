"""The folders of files that ship with the project: gin files, configurations, the demo's pair."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def folder(name: Literal["gin", "configs", "demo"]) -> Path:
    """Returns the path of a folder, in an installed package or in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / f"_{name}"
    return installed if installed.is_dir() else package.parent / name


def shipped(path: str) -> str:
    """Returns the path of `demo/NAME` in the pair of checkpoints that ships with the project.

    Any other path is returned unchanged, and so is one that exists in the current folder.
    """
    room, _, name = path.partition("/")
    file = folder("demo") / name
    is_shipped = room == "demo" and bool(name) and not os.path.exists(path) and file.exists()
    return str(file) if is_shipped else path


def gin_file(name: str) -> Path | None:
    """Returns the path of a gin file that ships with the project; None for another name."""
    candidates = (folder("gin") / name, folder("configs") / name)
    return next(filter(Path.is_file, candidates), None)
