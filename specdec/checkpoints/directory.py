"""What a directory is: its format, its model, its vocabulary. No array is touched here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from specdec.checkpoints.errors import CheckpointError
from specdec.models.t5 import T5Config

CONFIG = "config.json"
VERSION = 1  # of our own format

# The files that tell a format. Ours needs its config too, which `save` writes last.
MARKS = {
    "t5x": ("checkpoint",),
    "t5x_orbax": ("state/manifest.ocdbt",),
    "orbax": ("params/manifest.ocdbt", CONFIG),
}


class Found(NamedTuple):
    """One checkpoint on disk."""

    format: str  # a key of MARKS
    directory: Path


def local(path: str | os.PathLike) -> Path:
    """The path as an absolute one; raises CheckpointError for URLs."""
    if "://" in str(path):
        raise CheckpointError(
            f"checkpoint {str(path)!r} is a URL and only local directories can be used; "
            "copy it to a disk first"
        )
    return Path(os.path.abspath(Path(path).expanduser()))  # TensorStore refuses ".."


def locate(path: str | os.PathLike) -> Found:
    """The checkpoint at `path`, or the latest of the `checkpoint_<step>` directories in it."""
    path = local(path)
    if path.is_file():
        raise CheckpointError(f"checkpoint {path} is a file; give its directory, {path.parent}")
    if not path.exists():
        nearest = next(parent for parent in path.parents if parent.exists())
        raise CheckpointError(
            f"checkpoint {path} does not exist; {nearest} holds {_contents(nearest)}"
        )
    directory = path if _format(path) else _latest(path) or path
    format = _format(directory)
    if format is None:
        marks = "; ".join(f"{name}: {' and '.join(files)}" for name, files in MARKS.items())
        raise CheckpointError(
            f"no checkpoint in {directory}: looked for checkpoint_<step> directories and for the "
            f"files of each format ({marks}), found {_contents(directory)}; give the directory of "
            "one checkpoint or its parent"
        )
    return Found(format, directory)


def config_from(path: str | os.PathLike, dtype: str | None = None) -> T5Config:
    """The model that a checkpoint's `config.json` describes, computed in `dtype` if that is given.

    Our own checkpoints always have one. One with T5Config's fields beside a T5X checkpoint, in its
    directory or in the parent, counts too. Raises CheckpointError where there is none, or where it
    describes something else.
    """
    directory = locate(path).directory
    for file in (directory / CONFIG, directory.parent / CONFIG):
        if file.is_file():
            record = _record(file)
            try:
                config = T5Config(**record.get("model", record))
            except (TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{file} does not describe a model ({error}); its fields must be those of "
                    "T5Config, or give the config yourself"
                ) from error
            return config if dtype is None else dataclasses.replace(config, dtype=dtype)
    raise CheckpointError(
        f"checkpoint {directory} does not record its model; give a T5Config, or put its fields "
        f"into {directory / CONFIG}"
    )


def vocabulary_from(path: str | os.PathLike) -> Path | None:
    """The SentencePiece model saved with a checkpoint, or None where none is recorded.

    Raises CheckpointError if the file is gone or is not the one that was saved.
    """
    found = locate(path)
    recorded = _recorded_vocabulary(found)
    if recorded is None:
        return None
    file = found.directory / recorded["file"]
    if not file.is_file() or sha256(file) != recorded["sha256"]:
        raise CheckpointError(
            f"checkpoint {found.directory} was saved with the vocabulary {recorded['file']} "
            f"(sha256 {recorded['sha256'][:8]}), which is missing or changed; put it back"
        )
    return file


def check_pair(target_path: str | os.PathLike, draft_path: str | os.PathLike) -> None:
    """Raises CheckpointError if both checkpoints record a vocabulary and these differ.

    Outputs of different width with the same vocabulary are a legal pair: T5's are padded.
    """
    target, draft = locate(target_path), locate(draft_path)
    ours, theirs = _recorded_vocabulary(target), _recorded_vocabulary(draft)
    if ours and theirs and ours["sha256"] != theirs["sha256"]:
        raise CheckpointError(
            f"target {target.directory} and draft {draft.directory} have different vocabularies "
            f"({ours['file']}, sha256 {ours['sha256'][:8]}, and {theirs['file']}, sha256 "
            f"{theirs['sha256'][:8]}); a draft is read as the target's ids: use models of the same "
            "vocabulary"
        )


def sha256(file: Path) -> str:
    """The hexadecimal digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _format(directory: Path) -> str | None:
    for name, files in MARKS.items():
        if all((directory / file).is_file() for file in files):
            return name
    return None


def _latest(parent: Path) -> Path | None:
    # A full match: what is still being written has a longer name.
    steps = {
        int(match[1]): entry
        for entry in parent.iterdir()
        if entry.is_dir() and (match := re.fullmatch(r"checkpoint_(\d+)", entry.name))
    }
    return steps[max(steps)] if steps else None


def _recorded_vocabulary(found: Found) -> dict[str, str] | None:
    if found.format != "orbax":
        return None
    return _record(found.directory / CONFIG).get("vocabulary")


def _record(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); restore it") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{file} holds a JSON {type(record).__name__}, not an object")
    if record.get("version", VERSION) != VERSION:
        raise CheckpointError(
            f"{file} has format version {record['version']} and this specdec reads version "
            f"{VERSION}; update it"
        )
    return record


def _contents(directory: Path, limit: int = 5) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
