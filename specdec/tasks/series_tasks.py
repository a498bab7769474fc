"""Tasks over files of series: the last values of each are predicted from those before them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from specdec.common.values import PositiveInt, check
from specdec.tasks.loading import TaskError
from specdec.tasks.registry import check_definition, registered
from specdec.tasks.series import SeriesBins, text_of, values_of
from specdec.tasks.series_metrics import Future, mase, wql
from specdec.tasks.task import Example, Task, TextTask
from specdec.tasks.vocabularies import VocabularyDefinition


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
    """Counts the series, and checks that each is well-formed and longer than the horizon."""
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
