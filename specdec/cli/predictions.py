"""The folder of `specdec eval`. After a kill at any moment it holds what is needed to go on.

run.gin            the settings in force, which repeat the run; other settings are refused
predictions.jsonl  one line per text and sample, in order; of several hosts each has a file,
                   predictions-00001-of-00004.jsonl for example
metrics.json       written when all predictions are there
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specdec.cli.settings import UsageError


class Folder:
    """Opens or makes the folder of a run that `shard` = (k, n), the k-th of n hosts, works on.

    Raises:
      UsageError: the folder cannot be written, or holds another run or one of other hosts.
    """

    def __init__(self, path: str, in_force: str, shard: tuple[int, int]):
        host, hosts = shard
        self.path = Path(path)
        self.metrics = self.path / "metrics.json"
        self._files = [self.path / _name(k, hosts) for k in range(hosts)]
        self._own = self._files[host]
        if "://" in path:
            raise UsageError(f"--output_dir {path} is not a local folder; give one")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._claim(in_force)
        except OSError as error:
            raise UsageError(f"--output_dir {path} cannot be used: {error.strerror}") from error

    def _claim(self, in_force: str) -> None:
        begun = set(self.path.glob("predictions*.jsonl"))
        if others := begun - set(self._files):
            raise UsageError(
                f"{min(others)} is of a run on another number of hosts than {len(self._files)}; "
                "use as many, or give another --output_dir"
            )
        run = self.path / "run.gin"
        if not run.exists():
            if begun:
                raise UsageError(f"{min(begun)} has no run.gin beside it; give another folder")
            write(run, in_force)
        elif differs := first_difference(run.read_text(encoding="utf-8"), in_force):
            name, old, new = differs
            raise UsageError(
                f"{self.path} was begun with {name} = {old}, and now it is {new}; take the "
                f"settings of {run}, or give another --output_dir"
            )

    def done(self) -> int:
        """How many predictions of this host are there already, but for a last line that a kill has
        torn."""
        self._own.touch()
        with self._own.open("rb") as file:
            return sum(line.endswith(b"\n") for line in file)

    def append(self, records: Iterable[dict[str, Any]], after: int) -> None:
        """Writes each record as soon as it is there, behind the first `after` ones."""
        with self._own.open("rb+") as file:
            file.truncate(sum(map(len, itertools.islice(file, after))))
        with self._own.open("a", encoding="utf-8") as file:
            for record in records:
                print(json.dumps(record, ensure_ascii=False), file=file, flush=True)

    def records(self) -> Iterator[dict[str, Any]]:
        """Those of all hosts that are there so far."""
        for path in filter(Path.exists, self._files):
            with path.open(encoding="utf-8") as file:
                yield from (json.loads(line) for line in file if line.endswith("\n"))


def write(path: Path, text: str) -> None:
    """At once or not at all, also if several hosts do it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _name(host: int, hosts: int) -> str:
    return "predictions.jsonl" if hosts == 1 else f"predictions-{host:05}-of-{hosts:05}.jsonl"


def first_difference(old: str, new: str) -> tuple[str, str, str] | None:
    """The first setting that is not the same in two gin files, with both values."""
    before, after = _settings(old), _settings(new)
    for name in [*after, *before]:
        values = before.get(name, "not set"), after.get(name, "not set")
        if values[0] != values[1]:
            return name, *values
    return None


def _settings(text: str) -> dict[str, str]:
    """Name -> value, of a file as gin writes it: a value may go on in indented lines."""
    joined = re.sub(r"\s*\\?\n +", " ", text)
    pairs = (line.split(" = ", 1) for line in joined.splitlines() if " = " in line)
    return {pair[0]: pair[1] for pair in pairs if not pair[0].startswith("#")}
