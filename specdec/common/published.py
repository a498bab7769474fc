"""Published speed-ups: Leviathan, Kalman and Matias (2211.17192), table 2."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class PaperRow(NamedTuple):
    """A row of the table: T5 1.1 XXL on a TPU v4, one text at a time. Letters as in `theory`."""

    name: str  # of the file in configs/leviathan/ that repeats it
    task: str  # EnDe or CNN/DM
    draft: str  # the size of the T5 1.1 that drafts
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float  # the speed-up that the paper calls Exp
    measured: float  # the speed-up that the paper calls Emp


@functools.cache
def rows() -> Mapping[str, PaperRow]:
    """Returns name -> row, in the order of the table."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    _, *lines = csv.reader(text.splitlines())
    table = (
        PaperRow(name, task, draft, int(temperature), int(gamma), *map(float, figures))
        for name, task, draft, temperature, gamma, *figures in lines
    )
    return {row.name: row for row in table}
