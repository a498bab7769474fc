"""The folder of `specdec eval`, from which a run that was killed at any moment can resume.

run.gin            the settings of the run; a run with other settings is refused
predictions.jsonl  one line per text and sample, in order; with several hosts, each host writes a
                   file such as predictions-00001-of-00004.jsonl
metrics.json       the metrics, written when all texts have predictions
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from specdec.common import records
from specdec.common.json_values import JsonObject
from specdec.common.records import Lines, RecordsError


class Prediction(TypedDict, total=False):
    """The fields that are read from a line; a beam search has lists in place of some values."""

    index: int
    sample: int
    input: str
    target: str | None
    prediction: str
    predictions: list[str]
    tokens: list[int | list[int]]
    calls: int
    drafted: list[int]
    accepted: list[int]
    steps: int
    scores: list[float | None]
    alone: str | list[str]
    alone_tokens: list[int | list[int]]


class PredictionsFolder:
    """A folder with predictions of a run with settings `in_force`, on host k of n = `shard`."""

    def __init__(self, path: str, in_force: str, shard: tuple[int, int]):
        self.shard = host, hosts = shard
        self.path = Path(path)
        self.metrics = self.path / "metrics.json"
        self._all = [Lines(self.path / _name(k, hosts), Prediction) for k in range(hosts)]
        self._own = self._all[host]
        refuse_url(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._claim(in_force)
            self._own.path.touch()
        except OSError as error:
            raise RecordsError(
                f"--output_dir {path} cannot be used: {error.strerror}; give another"
            ) from error

    def _claim(self, in_force: str) -> None:
        begun = set(self.path.glob("predictions*.jsonl"))
        if others := begun - {lines.path for lines in self._all}:
            raise RecordsError(
                f"{min(others)} is of a run on another number of hosts than {len(self._all)}; "
                "use that number, or give another --output_dir"
            )
        first = min(begun, default=None)
        file = self.path / "run.gin"
        records.claim(self.path, file, in_force, begun=first, instead="--output_dir")

    def hold(self, alone: bool) -> None:
        """Locks this host's file; if `alone`, removes all *.part files that killed runs left."""
        records.hold(self._own.path, "--output_dir", "*" if alone else None)

    def done(self) -> int:
        """Returns the number of this host's predictions that exist already."""
        return sum(1 for _ in self._own)

    def check(self, expected: Iterable[Mapping[str, object]], needed: Sequence[str] = ()) -> None:
        """Raises RecordsError if the predictions differ from `expected` or lack `needed` fields."""
        waiting = iter(expected)
        for number, record in enumerate(self._own, start=1):
            where = f"{self._own.path}, line {number}"
            known = next(waiting, None)
            if known is None:
                raise RecordsError(
                    f"{where}, is after the run's last text; delete it and all lines after it"
                )
            for name, value in known.items():
                if record.get(name) != value:
                    raise RecordsError(
                        f"{where}: {name} is {record.get(name)!r}, and the run's is {value!r}; "
                        "restore the data, or give another --output_dir"
                    )
            if lacking := next((name for name in needed if name not in record), None):
                raise self._own.damaged(number, f"has no {lacking!r}")

    def append(self, predictions: Iterable[JsonObject], after: int) -> None:
        """Keeps the first `after` predictions, and appends each new one when it is available."""
        self._own.replace(itertools.islice(self._own, after))
        for prediction in predictions:
            self._own.append(prediction)

    def records(self) -> Iterator[JsonObject]:
        """Returns an iterator over the predictions of all hosts."""
        return itertools.chain.from_iterable(self._all)

    def conclude(self, metrics: str) -> None:
        """Writes the text `metrics` to metrics.json."""
        records.write(self.metrics, metrics)


def refuse_url(path: str) -> None:
    """Raises RecordsError if the path is a URL, as files in buckets cannot be appended to."""
    if "://" in path:
        raise RecordsError(f"--output_dir {path} is not a local folder; give a local one")


def _name(host: int, hosts: int) -> str:
    return "predictions.jsonl" if hosts == 1 else f"predictions-{host:05}-of-{hosts:05}.jsonl"
