"""The records of a benchmark, and the file that stores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypedDict

from specdec.common import records
from specdec.common.decoded import DecodedText
from specdec.common.json_values import JsonObject, check_kind, record_of
from specdec.common.records import Lines
from specdec.common.schemas import Amount, Count, OneOrMore
from specdec.decoding.beam_search import BeamOutput
from specdec.measure.parts import Key, key_of, name_of

# The fields of a generation's line, in order, and those that a line lacks if they are empty.
FIELDS = ("calls", "tokens", "drafted", "accepted", "sources", "depths", "broken_drafts", "beams")
OPTIONAL = ("sources", "depths", "broken_drafts", "beams")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(DecodedText):
    """One decoding of one text.

    Attributes:
      text: The example's place in its split, from 0.
      mode: The target alone, or speculative. With --num_beams both are beam searches, and greedy is
        speculation with the same drafter without a search.
      repeat: The number of the measurement of this text, from 0.
      seconds: Wall-clock seconds.
      split: The name of the text's split, if the text was decoded only to predict other times.
      beams: The token ids of each returned beam, the best beam first; then drafted and accepted
        count steps of the search; absent without beam search.
    """

    text: Count
    mode: Annotated[str, Literal["alone", "speculative", "greedy"]] = "speculative"
    repeat: Annotated[int | None, Count] = None  # None if it was not timed
    seconds: Annotated[float | None, Amount] = None  # None if it was not timed
    split: Annotated[str | None, str] = None  # None for the timed split
    beams: Sequence[Sequence[Count]] = ()

    LINE: ClassVar = ("mode", "text", "repeat", "seconds", *FIELDS)
    ELSEWHERE: ClassVar = ("split", "text", *FIELDS)

    @classmethod
    def of_search(cls, output: BeamOutput, row: int, depth: int, **others: Any) -> Self:
        """Returns the record of one row of a beam search whose drafts have `depth` steps."""
        beams, calls = output.texts(row), int(output.trace.calls[row])
        accepted = (output.trace.steps[row][:calls] - 1).tolist()
        drafted = [depth] * (calls - 1) + accepted[-1:]
        best = next(iter(beams), [])
        return cls(tokens=best, beams=beams, drafted=drafted, accepted=accepted, **others)

    @property
    def steps(self) -> int:
        """The number of steps of a beam search; without beams, the number of tokens."""
        return sum(self.accepted) + self.calls if self.beams else len(self.tokens)


class Timing(NamedTuple):
    """One timed run of a part of a generation, on one text's inputs.

    Attributes:
      part: The part that ran: calls of a model, by its role and the call's width in tokens
        ('target 6', 'draft 1', 'alone 1'); alternating calls ('turn of 1 x draft 2, 6 x draft 1, 1
        x target 8'); the prefill ('prefill', 'alone prefill'); or a read of memory ('memory',
        'memory_read').
      text: The example's place in its split, from 0.
      repeat: The number of the measurement of this text, from 0.
      seconds: Wall-clock seconds.
      steps: The number of model calls in these seconds.
    """

    part: Annotated[Key, str]
    text: Count
    repeat: Count
    seconds: Amount
    steps: OneOrMore


class _Part(TypedDict):
    part: str


Record: TypeAlias = Generation | Timing


class File:
    """The records of a benchmark, in a file or, without a path, in memory.

    A file of an earlier run keeps the texts that it measured in all `modes` modes."""

    def __init__(self, path: str | None, settings: str, modes: int = 2):
        self._lines = None if path is None else Lines.of(Path(path), settings)
        before = list(self._lines.map(record, "bench")) if self._lines else []
        self.done = _in_all_modes(before, modes)
        self.elsewhere = {(_split(x), x.text) for x in before if _split(x)}
        self._records = [x for x in before if _split(x) or (x.repeat, x.text) in self.done]
        if self._lines:
            self._lines.replace(map(fields_of, self._records))

    def write(self, record: Record) -> None:
        """Adds a record, and appends it to the file."""
        self._records.append(record)
        if self._lines:
            self._lines.append(fields_of(record))

    def records(self, split: str | None) -> Iterator[Record]:
        """Returns the records of the timed split, and of `split` if it is not None."""
        return (record for record in self._records if _split(record) in (None, split))

    def conclude(self, report: Mapping[str, object]) -> None:
        """Writes the report to FILE.summary.json; without a file, does nothing."""
        if self._lines:
            text = records.as_json(report, indent=2)
            records.write(Path(f"{self._lines.path}.summary.json"), f"{text}\n")


def record(fields: JsonObject) -> Record:
    """Returns the record of a line; raises TypeError or ValueError if its fields do not fit."""
    if not fields.keys() & {"mode", "split"}:
        check_kind(fields, _Part)
        return record_of(Timing, fields, part=key_of(fields["part"]))
    return record_of(Generation, {name: x for name, x in fields.items() if name != "calls"})


def fields_of(record: Record) -> Mapping[str, object]:
    """Returns the fields of a record's line, without empty optional fields."""
    if isinstance(record, Timing):
        return record._asdict() | {"part": name_of(record.part)}
    names = record.LINE if record.split is None else record.ELSEWHERE
    named = {name: getattr(record, name) for name in names}
    return {name: value for name, value in named.items() if name not in OPTIONAL or value}


def _split(record: Record) -> str | None:
    return record.split if isinstance(record, Generation) else None


def _in_all_modes(records: Iterable[Record], count: int) -> set[tuple[int, int]]:
    """Returns (repeat, text) of the texts that were measured in `count` modes."""
    modes: dict[tuple[int, int], set[str]] = {}
    for record in records:
        if isinstance(record, Generation) and record.repeat is not None:
            modes.setdefault((record.repeat, record.text), set()).add(record.mode)
    return {unit for unit, measured in modes.items() if len(measured) == count}
