"""The error class of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class CheckpointError(ValueError):
    """A directory, file or tree of parameters that cannot be used; one line with the remedy."""


@contextlib.contextmanager
def about(what: object) -> Iterator[None]:
    """Converts ValueErrors of families, which know no files, to CheckpointErrors about `what`."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{what}: {error}") from error
