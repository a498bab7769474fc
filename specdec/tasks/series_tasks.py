"""Tasks over files of series: the last values of each are predicted from those before them.

A metric compares all samples of a series together with its target. The definitions are those of
GluonTS that Chronos uses (Ansari et al. 2024, 2403.07815, appendix D). Values that are missing in a
target do not count.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec.common.values import PositiveInt, check
from specdec.tasks.loading import TaskError
from specdec.tasks.metrics import SumMetric
from specdec.tasks.registry import check_definition, registered
from specdec.tasks.series import SeriesBins, text_of, values_of
from specdec.tasks.task import Example, Task, TextTask
from specdec.tasks.vocabularies import VocabularyDefinition


class Future(NamedTuple):
    """The target of a series, as its metrics need it."""

    values: np.ndarray  # [N], NaN where one is missing
    naive_error: float  # mean |difference| of context values that are one season apart; NaN if none


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def quantiles(
    samples: ArrayLike | Sequence[np.ndarray], levels: Sequence[float] = LEVELS
) -> np.ndarray:
    """Returns [levels, N], quantiles over the samples of a series, linear between samples.

    Args:
      samples: [samples, N], the sampled values.
      levels: numbers between 0 and 1.
    """
    return np.quantile(np.asarray(samples, float), levels, axis=0)


@dataclasses.dataclass(frozen=True)
class WeightedQuantileLoss(SumMetric[Future, Sequence[np.ndarray]]):
    """Twice the quantile loss of all values over the sum of their |values|, mean over levels.

    Args:
      levels: the levels of the quantiles.
    """

    levels: tuple[float, ...] = LEVELS
    of_samples: ClassVar[bool] = True

    def statistics(self, target: Future, prediction: Sequence[np.ndarray]) -> np.ndarray:
        """Returns [1 + levels]: the sum of the absolute values, and each level's loss."""
        there = ~np.isnan(target.values)
        values = target.values[there]
        behind = values - quantiles(prediction, self.levels)[:, there]
        levels = np.array(self.levels)[:, None]
        losses = 2 * np.maximum(levels * behind, (levels - 1) * behind)
        return np.array([np.abs(values).sum(), *losses.sum(axis=1)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"wql": float(sums[1:].mean() / sums[0])}

    @property
    def signature(self) -> str:
        return f"levels:{','.join(map(str, self.levels))}|weights:sum of sizes"


@dataclasses.dataclass(frozen=True)
class Mase(SumMetric[Future, Sequence[np.ndarray]]):
    """Mean absolute scaled error of the median (Hyndman and Koehler, 2006), mean over series.

    A series' error is divided by that of the naive prediction in its context, which repeats the
    value of one season before. A series whose naive error is 0 or unknown does not count.
    """

    of_samples: ClassVar[bool] = True

    def statistics(self, target: Future, prediction: Sequence[np.ndarray]) -> np.ndarray:
        """Returns [2]: the number 1 if the series counts, and its scaled error."""
        errors = np.abs(target.values - quantiles(prediction, [0.5])[0])
        errors = errors[~np.isnan(errors)]
        if not len(errors) or not target.naive_error > 0:
            return np.zeros(2)
        return np.array([1, errors.mean() / target.naive_error])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"mase": float(sums[1] / sums[0]) if sums[0] else float("nan")}

    @property
    def signature(self) -> str:
        return "median|mean over series"


wql, mase = WeightedQuantileLoss(), Mase()


@dataclasses.dataclass(frozen=True, eq=False)
class SeriesTask(TextTask):
    """A task over series."""

    season: int = 1  # the number of values after which a series repeats itself, for MASE

    def postprocess(self, text: str, example: Example, is_target: bool) -> np.ndarray | Future:
        values = np.array(values_of(text))
        if not is_target:
            return values
        past = np.array(values_of(example.input_text))
        steps = np.abs(past[self.season :] - past[: -self.season])
        steps = steps[~np.isnan(steps)]
        return Future(values, float(steps.mean()) if len(steps) else float("nan"))


def series_task(
    name: str,
    files: Mapping[str, str],
    vocabulary: VocabularyDefinition,
    *,
    horizon: int | None = None,
    season: int = 1,
    metric_fns: Sequence[Callable] = (wql, mase),
) -> Task:
    """Registers a task over files of series, or returns it if the same task exists.

    Args:
      name: the name by which the task is registered.
      files: split -> path of a file with a series on each line; see `series.values_of`.
      vocabulary: the bins of values, such as `SeriesBins(path)`.
      horizon: the number of values that are predicted, the last of each series; None for the
        vocabulary's `prediction_length`.
      season: the number of values after which a series repeats itself, for MASE.
      metric_fns: metrics of predictions.

    Returns:
      The task.

    Raises:
      TaskError: a file is missing, is empty, or has a line that is not a series longer than the
        horizon. The vocabulary is not one of series, or another task is called `name`.
    """
    check_definition(name, "files", files, "split -> path, as in {'test': 't.jsonl'}", vocabulary)
    if not isinstance(vocabulary, SeriesBins):
        raise TaskError(f"vocabulary of task {name!r} is {vocabulary}; give SeriesBins(path)")
    check("season", season, PositiveInt, TaskError)
    files, metrics, bins = dict(files), tuple(metric_fns), vocabulary.plain()
    length = bins.prediction_length if horizon is None else horizon
    check("horizon", length, PositiveInt, TaskError)

    def task() -> Task:
        sizes = {split: _examine(path, length) for split, path in files.items()}
        pairs = functools.partial(_pairs, files, length)
        return SeriesTask(name, pairs, sizes, bins, metrics, season)

    return registered(name, (series_task, files, vocabulary, length, season, metrics), task)


def _pairs(
    files: Mapping[str, str], horizon: int, split: str, start: int
) -> Iterator[tuple[str, str]]:
    """Yields (context, future) of a file's lines, from line `start` on."""
    with open(files[split], encoding="utf-8") as lines:
        for line in itertools.islice(lines, start, None):
            values = values_of(line)
            yield text_of(values[:-horizon]), text_of(values[-horizon:])


def _examine(path: str, horizon: int) -> int:
    """Counts the series of a file; raises TaskError if one is malformed or too short."""
    if not os.path.isfile(path):
        raise TaskError(f"data file {path} is not a file; check the task's `files`")
    number = 0
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                length = len(values_of(line))
            except TaskError as error:
                raise TaskError(f"{path}, line {number}: {error}") from error
            if length <= horizon:
                raise TaskError(
                    f"{path}, line {number} has {length} values, and the last {horizon} are "
                    "predicted; give longer series, or a smaller horizon"
                )
    if not number:
        raise TaskError(f"data file {path} is empty; write one series per line")
    return number
