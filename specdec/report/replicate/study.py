"""Studies: the rows of a paper, what each row needs, and what was published of it.

A study is one TOML file. Those of `studies/` have names; others are given by their paths.
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

    what: str  # it in words
    flag: str  # the flag that names it, with {} or {!r} for its path
    tfds: str | None = None  # its folder below TFDS's own; None if it is not of TFDS
    optional: bool = False  # whether a run without it reads a public one


@dataclasses.dataclass(frozen=True)
class Grown:
    """The stand-in for the pair of a row whose checkpoints are missing."""

    run: Sequence[str]  # the flags of a run of the embedded pair
    draft: str  # the preset that its draft is grown to


@dataclasses.dataclass(frozen=True)
class Published:
    """The published figures of a row; None for what was not published."""

    alpha: float | None = None  # the acceptance rate
    cost_ratio: float | None = None  # c
    # predicted, speedup: over the target alone
    predicted: float | None = None
    speedup: float | None = None
    tokens_per_call: float | None = None  # of the target


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """A row of a study."""

    name: str  # its name, which its files have too
    run: Sequence[str]  # the flags of its run
    needs: Sequence[str] = ()  # names of what it needs
    more: Sequence[str] = ()  # further flags of `specdec eval`
    # the commands that measure it, of `STEPS`; None for those of the study
    steps: Sequence[str] | None = None
    # the flags of the run that is compiled, None for `run`; none at all to compile nothing
    shape: Sequence[str] | None = None
    tables: bool = False  # whether n-gram tables are measured too
    grown: Grown | None = None  # what stands in for its checkpoints; None for nothing
    published: Published = Published()  # what was published
    # published acceptance rates by drafter, for leniences of 1, 0.5, 0.3 and 0.1
    alphas: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)

    @property
    def compiled(self) -> Sequence[str]:
        """The flags of the run that is compiled; none to compile nothing."""
        return self.run if self.shape is None else self.shape


@dataclasses.dataclass(frozen=True)
class Study:
    """The rows of a paper."""

    name: str  # of its file
    # title, about: for the page
    title: str
    about: str
    rows: Sequence[StudyRow]  # in the order of the page
    needs: Mapping[str, Need] = dataclasses.field(default_factory=dict)  # what rows need, by name
    steps: Sequence[str] = STEPS  # the commands that measure a row which has none of its own
    topologies: Sequence[str] = ()  # that are predicted for, unless others are named
    alpha: Probability | None = None  # the acceptance rate to predict for where none is published
    # texts that are timed and evaluated; None for the run's own number
    limit: PositiveInt | None = None
    # that acceptance is measured on; None for the texts that are timed
    tokens: PositiveInt | None = None

    def rate(self, row: StudyRow) -> float | None:
        """Returns the acceptance rate that a row is predicted for, None if none is known."""
        return self.alpha if row.published.alpha is None else row.published.alpha


def names() -> list[str]:
    """Returns the names of the studies that ship with specdec."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Study:
    """Returns the study of a name, or of the path of a TOML file."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        hint = did_you_mean(name, names()) or f"; give {', '.join(names())}, or a TOML file"
        raise UsageError(f"there is no study {name!r}{hint}")
    with one_line(f"{path} is not a study: "):
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        study = from_plain(Study, {"name": path.stem, **fields}, "study")
        for row, number in collections.Counter(row.name for row in study.rows).items():
            if number > 1 or not re.fullmatch(r"[\w-]+", row):
                raise ValueError(f"{row!r} names {number} rows; give each a word of its own")
        for row in study.rows:
            _known(row.needs, study.needs, f"row {row.name} needs")
            _known(row.steps or (), STEPS, f"row {row.name} has the step")
        _known(study.steps, STEPS, "it has the step")
    rows = [dataclasses.replace(row, published=_published(row)) for row in study.rows]
    return dataclasses.replace(study, rows=rows)


def _known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what} {name!r}; give some of {', '.join(known) or '[needs]'}")


def _published(row: StudyRow) -> Published:
    """Returns what was published of a row: in the study, or else in table 2 of Leviathan et al."""
    if row.published != Published() or (paper := published.rows().get(row.name)) is None:
        return row.published
    return Published(paper.alpha, paper.c, paper.expected, paper.measured)


def found(need: Need, path: str | None, tfds_data_dir: str | None) -> str | None:
    """Returns the flags with which a run finds something, None if it is missing."""
    if path is not None:
        return need.flag.format(path)
    if need.optional:
        return ""
    if need.tfds is None or importlib.util.find_spec("seqio") is None:
        return None
    folder = tfds_data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return "" if (Path(folder).expanduser() / need.tfds).is_dir() else None
