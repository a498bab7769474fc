"""Checkpoints of the Hugging Face Hub.

OWNER/NAME or OWNER/NAME@REVISION stands for a repository's folder in the cache of this machine. The
folder is downloaded if it is missing.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm import tqdm

from specdec.checkpoints import generation, huggingface
from specdec.checkpoints.errors import CheckpointError
from specdec.common import resources

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


def resolved(path: str | os.PathLike) -> str | os.PathLike:
    """Returns the folder of the repository that `path` names, or else the path itself.

    A path that exists is returned unchanged, and so is every `Path`. `demo/target` and `demo/draft`
    ship with specdec. A cached repository is used without a request to the network.
    """
    path = resources.shipped(path) if isinstance(path, str) else path
    name = _NAME.fullmatch(path) if isinstance(path, str) else None
    return path if name is None or os.path.exists(path) else _folder(*name.groups())


def repository(path: str) -> str | None:
    """Returns OWNER/NAME if `path` names a repository of the hub, None for a path."""
    name = _NAME.fullmatch(path)
    is_here = os.path.exists(resources.shipped(path))
    return None if name is None or is_here else name[1]


class _Bar(tqdm):
    """A progress bar that is not written to files and pipes."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options | {"disable": not sys.stderr.isatty()})


@functools.cache
def _folder(repository: str, revision: str | None) -> str:
    hub = _hub(repository)
    cached = _cached(hub, repository, revision)
    if cached is not None and huggingface.has_vocabulary(cached):
        # There are generation settings, or it is known that there are none.
        if hub.try_to_load_from_cache(repository, generation.FILE, revision=revision) is not None:
            return str(cached)
    try:
        with _one_line(repository, revision):
            return _downloaded(hub, repository, revision)
    except CheckpointError:
        if cached is None:
            raise
        return str(cached)  # without files that the repository may not have either


def _hub(repository: str) -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise CheckpointError(
            f"checkpoint {repository} does not exist here; if it is a repository of the Hugging "
            "Face Hub, pip install huggingface_hub first"
        ) from error
    return huggingface_hub


def _cached(hub: ModuleType, repository: str, revision: str | None) -> Path | None:
    """Returns a repository's folder in the cache; None unless all arrays are in it."""
    with _one_line(repository, revision):
        file = hub.try_to_load_from_cache(repository, huggingface.CONFIG, revision=revision)
    folder = Path(file).parent if isinstance(file, str) else None
    return folder if folder is not None and huggingface.is_whole(folder) else None


def _downloaded(hub: ModuleType, repository: str, revision: str | None) -> str:
    """Downloads the files of a repository that specdec reads, and returns their folder."""
    info = hub.HfApi().model_info(repository, revision=revision)
    names = [file.rfilename for file in info.siblings]
    if not (wanted := huggingface.wanted(names)):
        some = ", ".join(sorted(names)[:5]) or "nothing"
        raise CheckpointError(
            f"checkpoint {repository} has no config.json with model.safetensors or "
            f"pytorch_model.bin on the Hugging Face Hub, but {some}; name another repository"
        )
    folder = hub.snapshot_download(
        repository, revision=revision, allow_patterns=wanted, tqdm_class=_Bar
    )
    if generation.FILE not in names:
        from huggingface_hub.errors import EntryNotFoundError

        with suppress(EntryNotFoundError):  # the cache then records that there is none
            hub.hf_hub_download(repository, generation.FILE, revision=revision)
    return folder


@contextmanager
def _one_line(repository: str, revision: str | None) -> Iterator[None]:
    """Converts every error to a CheckpointError of one line."""
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    try:
        yield
    except CheckpointError:
        raise
    except errors.GatedRepoError as error:
        reason = f"{host} needs you to request access on its page; do so, then hf auth login"
        raise CheckpointError(f"checkpoint {repository} is gated: {reason}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise CheckpointError(
            f"checkpoint {repository} does not exist here, and {host} has no such repository; "
            "check the name, or hf auth login if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {repository} has no revision {revision} on {host}; name a branch, a tag "
            "or a commit that it has"
        ) from error
    except Exception as error:  # of its HTTP client, whichever that is, or of the disk
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise CheckpointError(
            f"checkpoint {repository} does not exist here, is not in {constants.HF_HUB_CACHE}, "
            f"and cannot be read from {host} ({reason}); give a folder, or copy it to that cache"
        ) from error
