"""The error class of this package."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class TaskError(ValueError):
    """A task, its files or its vocabulary cannot be used; the message is one line."""


@contextlib.contextmanager
def no_panic(file: str | None) -> Iterator[None]:
    """Converts a panic of the `tokenizers` library, which is no Exception, to a TaskError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0][:200]
        raise TaskError(
            f"vocabulary {file}: the library tokenizers fails at its rules ({reason}); use the "
            "model's own tokenizer"
        ) from error
