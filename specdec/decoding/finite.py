"""The error for a target whose logits are not finite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from specdec.models.model import Target
from specdec.types import Array


class NonFiniteLogits(ValueError):
    """The target's logits are NaN or infinite where a token is to be chosen or scored.

    Attributes:
      row: of the batch, from 0.
      position: of the output token in its text, from 0.
    """

    def __init__(self, target: Target, row: int, position: int, text: str | None = None):
        self.target, self.row, self.position = target, row, position
        super().__init__(
            f"the logits of {type(target).__name__} are NaN or infinite for output token "
            f"{position + 1} of {text or f'row {row + 1}'}; the checkpoint is damaged, or its "
            "numbers overflow: see `specdec check`, and compute in float32"
        )

    def of_text(self, index: int) -> NonFiniteLogits:
        """The same error, which names the text by its index in the task instead of the row."""
        return NonFiniteLogits(self.target, self.row, self.position, f"text {index}")


@contextlib.contextmanager
def naming_texts(index: Sequence[int] | np.ndarray) -> Iterator[None]:
    """Makes a NonFiniteLogits error about a batch name the text instead of the row.

    Args:
      index: [B] the index of each row's text.
    """
    try:
        yield
    except NonFiniteLogits as error:
        raise error.of_text(int(index[error.row])) from error


def check_finite(output: Any, target: Target) -> None:
    """Raises NonFiniteLogits if a row of a `DecodeOutput` or a `BeamOutput` has failed.

    It does nothing while `decode` is traced, and for rows that are on other hosts; then
    `output.trace.failed` says which rows have failed.
    """
    failed = output.trace.failed
    if is_known(failed):
        for row in np.flatnonzero(jax.device_get(failed)):
            raise NonFiniteLogits(target, int(row), output.made(row))


def check_scores(log_probs: Array, target: Target) -> None:
    """Raises NonFiniteLogits if a log-probability [B, N] is NaN; see `check_finite`."""
    if is_known(log_probs):
        for row, position in np.argwhere(np.isnan(jax.device_get(log_probs))):
            raise NonFiniteLogits(target, int(row), int(position))


def is_known(array: Array) -> bool:
    """Returns whether this process has the values of an array, all of them."""
    if isinstance(array, Tracer):
        return False
    return not isinstance(array, jax.Array) or array.is_fully_addressable
