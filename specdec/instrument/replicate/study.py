"""Studies: the rows of a paper, what each row needs, and what was published of it.

A study is one TOML file. Those of `studies/` have names; others are given by their paths.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from specdec.common import published
from specdec.common.values import UsageError, did_you_mean

FOLDER = Path(__file__).parent / "studies"
STEPS = ("acceptance", "bench", "forecast", "eval")


@dataclasses.dataclass(frozen=True)
class Need:
    """A checkpoint, a data set or a vocabulary that rows need.

    Attributes:
      what: it in words.
      flag: the flag that names it, with {} or {!r} for its path.
      tfds: its folder below TFDS's own; None if it is not of TFDS.
      optional: whether a run without it reads a public one.
    """

    what: str
    flag: str
    tfds: str | None = None
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Grown:
    """The stand-in for the pair of a row whose checkpoints are missing.

    Attributes:
      run: the flags of a run of the embedded pair.
      draft: the preset that its draft is grown to.
    """

    run: Sequence[str]
    draft: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a study.

    Attributes:
      name: its name, which its files have too.
      run: the flags of its run.
      needs: names of what it needs.
      more: further flags of `specdec eval`.
      steps: the commands that measure it, of `STEPS`.
      shape: the flags of the run that is compiled, None for `run`; none at all to compile nothing.
      tables: whether n-gram tables are measured too.
      grown: what stands in for its checkpoints; None for nothing.
      published: figures by name: alpha, cost_ratio, predicted, speedup, tokens_per_call, bleu.
      alphas: published acceptance rates by drafter, for leniences of 1, 0.5, 0.3 and 0.1.
    """

    name: str
    run: Sequence[str]
    needs: Sequence[str] = ()
    more: Sequence[str] = ()
    steps: Sequence[str] = STEPS
    shape: Sequence[str] | None = None
    tables: bool = False
    grown: Grown | None = None
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)
    alphas: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Study:
    """The rows of a paper.

    Attributes:
      name: of its file.
      title, about: for the page.
      rows: in the order of the page.
      needs: what rows need, by name.
      topologies: that are predicted for, unless others are named.
      alpha: the acceptance rate to predict for where none is published.
      limit: texts that are timed and evaluated; None for the run's own number.
      tokens: that acceptance is measured on; None for the texts that are timed.
    """

    name: str
    title: str
    about: str
    rows: Sequence[Row]
    needs: Mapping[str, Need]
    topologies: Sequence[str] = ()
    alpha: float | None = None
    limit: int | None = None
    tokens: int | None = None


def names() -> list[str]:
    """Returns the names of the studies that ship with specdec."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Study:
    """Returns the study of a name, or of the path of a TOML file.

    Args:
      name: the name, or a path that ends in .toml.

    Raises:
      UsageError: there is none, or the file is not that of a study.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        hint = did_you_mean(name, names()) or f"; give {', '.join(names())}, or a TOML file"
        raise UsageError(f"there is no study {name!r}{hint}")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        steps = found.pop("steps", STEPS)
        needs = {name: Need(**fields) for name, fields in found.pop("needs", {}).items()}
        rows = [_row({"steps": steps, **fields}) for fields in found.pop("rows")]
        study = Study(name=path.stem, rows=rows, needs=needs, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is not a study: {error}; correct it") from error
    unknown = {need for row in rows for need in row.needs} - needs.keys()
    unknown |= {step for row in rows for step in row.steps} - {*STEPS}
    if unknown:
        raise UsageError(f"{path}: rows name {', '.join(sorted(unknown))}, which is not there")
    return study


def _row(fields: dict) -> Row:
    grown = fields.pop("grown", None)
    row = Row(grown=grown and Grown(**grown), **fields)
    if row.published or (table := published.rows().get(row.name)) is None:
        return row
    figures = {
        "alpha": table.alpha,
        "cost_ratio": table.c,
        "predicted": table.expected,
        "speedup": table.measured,
    }
    return dataclasses.replace(row, published=figures)


def found(need: Need, path: str | None, tfds_data_dir: str | None) -> str | None:
    """Returns the flags with which a run finds something, None if it is missing.

    Args:
      need: what is looked for.
      path: where the user says that it is: a path here, a gs:// path or a name of the hub.
      tfds_data_dir: the folder of TFDS's data sets; None for TFDS's own.
    """
    if path is not None:
        return need.flag.format(path)
    if need.optional:
        return ""
    if need.tfds is None or importlib.util.find_spec("seqio") is None:
        return None
    folder = tfds_data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return "" if (Path(folder).expanduser() / need.tfds).is_dir() else None
