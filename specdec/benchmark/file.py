"""What is measured, as records, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from specdec import records
from specdec.records import Lines

OPTIONAL = ("sources", "depths", "broken_drafts")  # fields of a line


class Generation(NamedTuple):
    """One text, decoded once. `tokens`, `drafted` and `accepted` are as `specdec decode` has them:
    ids with EOS, and one entry per target call; `sources` too, for a drafter that is made of
    others, and `depths`, its layers, for a target whose tokens may leave."""

    mode: str  # "alone" or "speculative"
    text: int  # the example's index
    repeat: int
    seconds: float
    calls: int
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]
    sources: Sequence[int] = ()
    depths: Sequence[int] = ()
    broken_drafts: int = 0  # see `Trace`


class Elsewhere(NamedTuple):
    """A text of another split, decoded by speculation and not timed; fields as in `Generation`."""

    split: str
    text: int
    calls: int
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]
    sources: Sequence[int] = ()
    depths: Sequence[int] = ()
    broken_drafts: int = 0  # see `Trace`


class Timing(NamedTuple):
    """One run of a part, on a text's inputs."""

    part: str
    text: int
    repeat: int
    seconds: float
    steps: int  # model calls in those seconds


Record: TypeAlias = Generation | Elsewhere | Timing


class File:
    """Records in a file, or in memory if there is none. What an earlier run with the same settings
    wrote is kept, up to the last text that it measured in both modes.

    settings: gin text, which goes to FILE.gin.
    done: pairs of a repeat and a text that need not be measured again.
    elsewhere: pairs of a split and a text of it, likewise.

    Raises:
      RecordsError: the file is of a run with other settings.
    """

    def __init__(self, path: str | None, settings: str):
        self._lines = None if path is None else Lines.of(Path(path), settings)
        before = list(self._lines.map(record, "bench")) if self._lines else []
        self.done = _in_both_modes(before)
        self.elsewhere = {(one.split, one.text) for one in before if isinstance(one, Elsewhere)}
        self._records = [one for one in before if self._is_whole(one)]
        if self._lines:
            self._lines.replace(map(_fields, self._records))

    def write(self, record: Record) -> None:
        """At once."""
        self._records.append(record)
        if self._lines:
            self._lines.append(_fields(record))

    def records(self, split: str | None) -> Iterator[Record]:
        """Those of the timed texts, and of the other split."""
        return (one for one in self._records if getattr(one, "split", split) == split)

    def conclude(self, report: Mapping[str, Any]) -> None:
        """Writes FILE.summary.json."""
        if self._lines:
            text = records.as_json(report, indent=2)
            records.write(Path(f"{self._lines.path}.summary.json"), f"{text}\n")

    def _is_whole(self, record: Record) -> bool:
        return isinstance(record, Elsewhere) or (record.repeat, record.text) in self.done


def record(fields: Mapping[str, Any]) -> Record:
    """What a line of the file says."""
    if "mode" in fields:
        return Generation(**fields)
    return Elsewhere(**fields) if "split" in fields else Timing(**fields)


def _fields(record: Record) -> dict[str, Any]:
    """Returns the fields of its line; optional ones are absent where there is nothing to say."""
    named = record._asdict().items()
    return {name: value for name, value in named if name not in OPTIONAL or value}


def _in_both_modes(found: Iterable[Record]) -> set[tuple[int, int]]:
    modes: dict[tuple[int, int], set[str]] = {}
    for one in found:
        if isinstance(one, Generation):
            modes.setdefault((one.repeat, one.text), set()).add(one.mode)
    return {unit for unit, seen in modes.items() if len(seen) == 2}
