"""Helpers of tests of checkpoints: one-line errors, equal trees, files that are replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec.checkpoints import CheckpointError, safetensors, tree


def error_of(function: Callable, *arguments: Any, **named: Any) -> str:
    """Returns the message that a function fails with, which must be one line."""
    with pytest.raises(CheckpointError) as raised:
        function(*arguments, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def assert_identical(actual: Any, expected: Any) -> None:
    """Compares names, dtypes and bits."""
    actual, expected = tree.flatten(actual), tree.flatten(expected)
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert array.dtype == expected[name].dtype, name
        assert np.asarray(array).tobytes() == np.asarray(expected[name]).tobytes(), name


def rewrite(file: Path, arrays: Mapping[str, Any]) -> None:
    """Replaces a file of arrays; its maps into memory must outlive it."""
    file.unlink()
    safetensors.write(file, arrays, arrays.__getitem__)
