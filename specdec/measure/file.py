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

# The fields of each line, in order, and those which are absent where they have nothing to say.
FIELDS = ("calls", "tokens", "drafted", "accepted", "sources", "depths", "broken_drafts", "beams")
OPTIONAL = ("sources", "depths", "broken_drafts", "beams")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(DecodedText):
    """A text that was decoded once.

    Attributes:
      text: The example's place in its split, from 0.
      mode: What decoded: the target alone, or with the drafter. With --num_beams both search for
        beams, and greedy is the drafter's text without a search.
      repeat: Which measurement of the same text, from 0.
      seconds: Wall-clock seconds.
      split: The split's name.
      beams: Of each beam that is returned, its token ids, the best first; then drafted and accepted
        count steps of the search; absent without beams.
    """

    text: Count
    mode: Annotated[str, Literal["alone", "speculative", "greedy"]] = "speculative"
    repeat: Annotated[int | None, Count] = None  # None if it was not timed
    seconds: Annotated[float | None, Amount] = None  # None if it was not timed
    split: Annotated[str | None, str] = None  # if it is not the timed one
    beams: Sequence[Sequence[Count]] = ()

    LINE: ClassVar = ("mode", "text", "repeat", "seconds", *FIELDS)
    ELSEWHERE: ClassVar = ("split", "text", *FIELDS)

    @classmethod
    def of_search(cls, output: BeamOutput, row: int, depth: int, **others: Any) -> Self:
        """Returns the record of one row of a search."""
        beams, calls = output.texts(row), int(output.trace.calls[row])
        accepted = (output.trace.steps[row][:calls] - 1).tolist()
        drafted = [depth] * (calls - 1) + accepted[-1:]
        best = next(iter(beams), [])
        return cls(tokens=best, beams=beams, drafted=drafted, accepted=accepted, **others)

    @property
    def steps(self) -> int:
        """Returns the steps of a search, and of another text its tokens."""
        return sum(self.accepted) + self.calls if self.beams else len(self.tokens)


class Timing(NamedTuple):
    """One timed run of a part, on a text's inputs.

    Attributes:
      part: What ran: a model's call by its role and width in tokens ('target 6', 'draft 1', 'alone
        1'), such calls one after the other ('turn of 1 x draft 2, 6 x draft 1, 1 x target 8'),
        reading the inputs ('prefill', 'alone prefill'), or a read of memory ('memory',
        'memory_read').
      text: The example's place in its split, from 0.
      repeat: Which measurement of the same text, from 0.
      seconds: Wall-clock seconds.
      steps: Model calls in those seconds.
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
    """Records in a file or in memory; it keeps those of texts that an earlier run finished."""

    def __init__(self, path: str | None, settings: str, modes: int = 2):
        self._lines = None if path is None else Lines.of(Path(path), settings)
        before = list(self._lines.map(record, "bench")) if self._lines else []
        self.done = _in_all_modes(before, modes)
        self.elsewhere = {(_split(x), x.text) for x in before if _split(x)}
        self._records = [x for x in before if _split(x) or (x.repeat, x.text) in self.done]
        if self._lines:
            self._lines.replace(map(fields_of, self._records))

    def write(self, record: Record) -> None:
        """Writes a record immediately."""
        self._records.append(record)
        if self._lines:
            self._lines.append(fields_of(record))

    def records(self, split: str | None) -> Iterator[Record]:
        """Returns the records of the timed texts, and of another split."""
        return (record for record in self._records if _split(record) in (None, split))

    def conclude(self, report: Mapping[str, object]) -> None:
        """Writes FILE.summary.json."""
        if self._lines:
            text = records.as_json(report, indent=2)
            records.write(Path(f"{self._lines.path}.summary.json"), f"{text}\n")


def record(fields: JsonObject) -> Record:
    """Returns the record of a line; raises TypeError or ValueError for a line of something else."""
    if not fields.keys() & {"mode", "split"}:
        check_kind(fields, _Part)
        return record_of(Timing, fields, part=key_of(fields["part"]))
    return record_of(Generation, {name: x for name, x in fields.items() if name != "calls"})


def fields_of(record: Record) -> Mapping[str, object]:
    """Returns the fields of a record's line."""
    if isinstance(record, Timing):
        return record._asdict() | {"part": name_of(record.part)}
    names = record.LINE if record.split is None else record.ELSEWHERE
    named = {name: getattr(record, name) for name in names}
    return {name: value for name, value in named.items() if name not in OPTIONAL or value}


def _split(record: Record) -> str | None:
    """Returns the split of a text that is not timed."""
    return record.split if isinstance(record, Generation) else None


def _in_all_modes(records: Iterable[Record], count: int) -> set[tuple[int, int]]:
    """Returns repeat and text of the texts that were measured in `count` modes."""
    modes: dict[tuple[int, int], set[str]] = {}
    for record in records:
        if isinstance(record, Generation) and record.repeat is not None:
            modes.setdefault((record.repeat, record.text), set()).add(record.mode)
    return {unit for unit, measured in modes.items() if len(measured) == count}
