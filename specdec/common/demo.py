"""The paths of the demonstration files in the project: a vocabulary and a trained pair."""

from __future__ import annotations

from specdec.common import resources


def path(name: str) -> str:
    """Returns the path of `target`, `draft` (checkpoints) or `vocabulary.model`."""
    folder = resources.folder("demo")
    if not (folder / name).exists():
        raise ValueError(f"{folder} has no {name!r}; it has target, draft and vocabulary.model")
    return str(folder / name)
