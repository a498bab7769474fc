"""The error class of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class CheckpointError(ValueError):
    """A directory, file or tree of parameters cannot be used; the message is one line."""


@contextlib.contextmanager
def about(what: object) -> Iterator[None]:
    """Converts a ValueError to a CheckpointError that begins with `what`, such as a path."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{what}: {error}") from error
