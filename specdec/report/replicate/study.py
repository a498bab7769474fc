"""Reads studies: TOML files with the rows of a paper, their needs and their published figures.

A study in the folder `studies/` is named by its file's name, another one by its path.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from specdec.common import published
from specdec.common.values import (
    PositiveInt,
    Probability,
    UsageError,
    did_you_mean,
    from_plain,
    one_line,
)

FOLDER = Path(__file__).parent / "studies"
STEPS = ("acceptance", "bench", "forecast", "eval")


@dataclasses.dataclass(frozen=True)
class Need:
    """A checkpoint, a data set or a vocabulary that rows need."""

    what: str  # a description in words
    flag: str  # the flag that sets its path, with {} or {!r} for the path
    tfds: str | None = None  # its folder within TFDS's folder; None if it is not in TFDS
    optional: bool = False  # whether a run without this flag reads a public one


@dataclasses.dataclass(frozen=True)
class Grown:
    """The run that stands in for a row whose checkpoints are missing, with grown demo models."""

    run: Sequence[str]  # the flags of a run of the embedded demo pair
    draft: str  # the preset to which the demo draft is grown


@dataclasses.dataclass(frozen=True)
class Published:
    """The published figures of a row; None for a figure that was not published."""

    alpha: float | None = None  # the acceptance rate
    cost_ratio: float | None = None  # c
    predicted: float | None = None  # the predicted speed-up over the target alone
    speedup: float | None = None  # the measured speed-up over the target alone
    tokens_per_call: float | None = None  # output tokens per target call


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """A row of a study: one run with its published figures."""

    name: str  # the row's name, with which the names of its files begin
    run: Sequence[str]  # the flags of its run
    needs: Sequence[str] = ()  # names in `Study.needs`
    more: Sequence[str] = ()  # further flags of `specdec eval`
    # the commands that measure the row, of `STEPS`; None for the study's commands
    steps: Sequence[str] | None = None
    # the flags of the run to compile; None for `run`, empty to compile nothing
    shape: Sequence[str] | None = None
    tables: bool = False  # whether acceptance is also measured for n-gram tables
    grown: Grown | None = None  # the stand-in for missing checkpoints; None for nothing
    published: Published = Published()
    # drafter -> published acceptance rates for leniences of 1, 0.5, 0.3 and 0.1
    alphas: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)

    @property
    def compiled(self) -> Sequence[str]:
        """The flags of the run to compile; empty to compile nothing."""
        return self.run if self.shape is None else self.shape


@dataclasses.dataclass(frozen=True)
class Study:
    """A study: the rows of a paper that can be replicated."""

    name: str  # the name of its file
    title: str  # of the page
    about: str  # a text for the page
    rows: Sequence[StudyRow]  # in the order of the page
    needs: Mapping[str, Need] = dataclasses.field(default_factory=dict)  # name -> need of rows
    steps: Sequence[str] = STEPS  # the commands that measure a row without `steps`
    topologies: Sequence[str] = ()  # the default TPU topologies to predict for
    alpha: Probability | None = None  # the acceptance rate for predictions, if none is published
    limit: PositiveInt | None = None  # texts to time and evaluate; None for the run's limit
    tokens: PositiveInt | None = None  # tokens to measure acceptance on; None for the timed texts

    def rate(self, row: StudyRow) -> float | None:
        """Returns the acceptance rate for a row's predictions, None if none is known."""
        return self.alpha if row.published.alpha is None else row.published.alpha


def names() -> list[str]:
    """Returns the names of the studies that ship with specdec."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Study:
    """Returns a study by its name or by the path of its TOML file; UsageError if it is invalid."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        hint = did_you_mean(name, names()) or f"; give {', '.join(names())}, or a TOML file"
        raise UsageError(f"there is no study {name!r}{hint}")
    with one_line(f"{path} is not a study: "):
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        study = from_plain(Study, {"name": path.stem, **fields}, "study")
        for row, number in collections.Counter(row.name for row in study.rows).items():
            if number > 1 or not re.fullmatch(r"[\w-]+", row):
                raise ValueError(f"{row!r} names {number} rows; give each another single word")
        for row in study.rows:
            _known(row.needs, study.needs, f"row {row.name} needs")
            _known(row.steps or (), STEPS, f"row {row.name} has the step")
        _known(study.steps, STEPS, "it has the step")
    rows = [dataclasses.replace(row, published=_published(row)) for row in study.rows]
    return dataclasses.replace(study, rows=rows)


def _known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} {name!r}; give some of "
                f"{', '.join(known) or 'the names in the table [needs], which has none yet'}"
            )


def _published(row: StudyRow) -> Published:
    """Returns a row's published figures: the study's, or those in table 2 of Leviathan et al."""
    if row.published != Published() or (paper := published.rows().get(row.name)) is None:
        return row.published
    return Published(paper.alpha, paper.c, paper.expected, paper.measured)


def flags_for(need: Need, path: str | None, tfds_data_dir: str | None) -> str | None:
    """Returns the flag that sets a need's path, '' if none is necessary, None if it is missing."""
    if path is not None:
        return need.flag.format(path)
    if need.optional:
        return ""
    if need.tfds is None or importlib.util.find_spec("seqio") is None:
        return None
    folder = tfds_data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return "" if (Path(folder).expanduser() / need.tfds).is_dir() else None
