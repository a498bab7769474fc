"""The error for a target whose logits are not finite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
from jax.core import Tracer

from specdec.models.contract.model import Target
from specdec.types import Array


class _Trace(Protocol):
    @property
    def failed(self) -> Array: ...  # [B] bool


class Output(Protocol):
    """A `DecodeOutput` or a `BeamOutput`."""

    @property
    def trace(self) -> _Trace: ...

    def made(self, index: int) -> int: ...


class NonFiniteLogits(ValueError):
    """The target's logits are NaN or infinite at a token that must be chosen or scored.

    Attributes:
      target: the model.
      row: the row of the batch, from 0.
      position: the index of the output token in its text, from 0.
    """

    def __init__(self, target: Target, row: int, position: int, text: str | None = None):
        self.target, self.row, self.position = target, row, position
        super().__init__(
            f"the logits of {type(target).__name__} are NaN or infinite for output token "
            f"{position + 1} of {text or f'row {row + 1}'}; the checkpoint is damaged, or its "
            "numbers overflow: see `specdec check`, and compute in float32"
        )

    def of_text(self, index: int) -> NonFiniteLogits:
        """Returns the same error, naming the text by its index in the task instead of the row."""
        return NonFiniteLogits(self.target, self.row, self.position, f"text {index}")


@contextlib.contextmanager
def naming_texts(index: Sequence[int] | np.ndarray) -> Iterator[None]:
    """Makes a NonFiniteLogits error about a batch name the text instead of the row.

    Args:
      index: [B] the index of each row's text.

    Returns:
      A context manager.
    """
    try:
        yield
    except NonFiniteLogits as error:
        raise error.of_text(int(index[error.row])) from error


def check_finite(output: Output, target: Target) -> None:
    """Raises NonFiniteLogits if a row of an output has failed.

    It does nothing while `decode` is traced, or for rows that are on other hosts. In these cases,
    `output.trace.failed` says which rows have failed.

    Args:
      output: the decoded batch.
      target: the model that the error names.
    """
    failed = output.trace.failed
    if is_known(failed):
        for row in np.flatnonzero(jax.device_get(failed)):
            raise NonFiniteLogits(target, int(row), output.made(int(row)))


def check_scores(log_probs: Array, target: Target) -> None:
    """Raises NonFiniteLogits if a log-probability is NaN; see `check_finite`.

    Args:
      log_probs: [B, N] float32.
      target: the model that the error names.
    """
    if is_known(log_probs):
        for row, position in np.argwhere(np.isnan(jax.device_get(log_probs))):
            raise NonFiniteLogits(target, int(row), int(position))


def is_known(array: Array) -> bool:
    """Returns whether this process has all values of an array."""
    if isinstance(array, Tracer):
        return False
    return not isinstance(array, jax.Array) or array.is_fully_addressable
