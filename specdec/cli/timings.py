"""The files of `specdec bench`: records as they come, the settings, and the figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from specdec import benchmark
from specdec.cli.predictions import first_difference
from specdec.cli.settings import UsageError
from specdec.environment import environment

Record: TypeAlias = benchmark.Generation | benchmark.Timing | benchmark.Elsewhere


class File:
    """Records in a file, or in memory if there is none. What an earlier run with the same settings
    wrote is kept, up to the last text that it measured in both modes.

    done: pairs of a repeat and a text that need not be measured again.
    elsewhere: pairs of a split and a text of it, likewise.

    Raises:
      UsageError: the file is of a run with other settings.
    """

    def __init__(self, path: str | None, in_force: str):
        self._path = None if path is None else Path(path)
        self._records = self._read(in_force)
        modes: dict[tuple[int, int], set[str]] = {}
        for record in self._records:
            if isinstance(record, benchmark.Generation):
                modes.setdefault((record.repeat, record.text), set()).add(record.mode)
        self.done = {unit for unit, seen in modes.items() if len(seen) == 2}
        self.elsewhere = {
            (one.split, one.text) for one in self._records if isinstance(one, benchmark.Elsewhere)
        }
        self._records = [
            one
            for one in self._records
            if isinstance(one, benchmark.Elsewhere) or (one.repeat, one.text) in self.done
        ]
        if self._path:
            Path(f"{self._path}.gin").write_text(in_force, encoding="utf-8")
            self._path.write_text("".join(map(_line, self._records)), encoding="utf-8")

    def _read(self, in_force: str) -> list[Record]:
        if self._path is None or not self._path.exists():
            return []
        before = Path(f"{self._path}.gin")
        written = before.read_text(encoding="utf-8") if before.exists() else ""
        if differs := first_difference(written, in_force):
            name, old, new = differs
            raise UsageError(
                f"{self._path} was begun with {name} = {old}, and now it is {new}; take the "
                f"settings of {before}, or give another --output_file"
            )
        with self._path.open(encoding="utf-8") as lines:
            return [record(json.loads(line)) for line in lines if line.endswith("\n")]

    def write(self, record: Record) -> None:
        """At once."""
        self._records.append(record)
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(record))

    def records(self, split: str | None) -> Iterator[Record]:
        """Those of the timed texts, and of the other split."""
        return (one for one in self._records if getattr(one, "split", split) == split)

    def conclude(
        self,
        summary: benchmark.Summary,
        about: Mapping[str, Any],
        compile_seconds: Mapping[str, float],
    ) -> None:
        """Writes the figures, and what they are about."""
        if self._path is None:
            return
        report = {
            "environment": environment(),
            "run": about,
            "compile_seconds": compile_seconds,
            **dataclasses.asdict(summary),
        }
        text = json.dumps(report, indent=2, ensure_ascii=False)
        Path(f"{self._path}.summary.json").write_text(f"{text}\n", encoding="utf-8")


def _line(record: Record) -> str:
    return f"{json.dumps(record._asdict())}\n"


def record(fields: Mapping[str, Any]) -> Record:
    """What a line of the file says."""
    if "mode" in fields:
        return benchmark.Generation(**fields)
    return benchmark.Elsewhere(**fields) if "split" in fields else benchmark.Timing(**fields)
