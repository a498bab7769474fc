"""Reads generations from JSON lines of `specdec decode` or `specdec bench`, to show each call."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specdec.common.records import Lines
from specdec.report.summaries import Figures, in_words

# Kind of a token -> its mark and its meaning, so that kinds can be read without colours.
KINDS = {
    "accepted": ("✓", "accepted"),
    "rejected": ("✗", "rejected"),
    "untested": ("·", "after a rejected token"),
    "correction": ("➜", "the target's correction"),
    "own": ("+", "the target's own"),
}


class Token(NamedTuple):
    """One token of a target call; a probability is None if it was not recorded."""

    kind: str  # a key of KINDS, or "given" for a token of a prefix
    text: str
    place: int  # in the output, from 1
    p: float | None = None  # the target's probability
    q: float | None = None  # the drafter's probability
    softmax: float | None = None  # the target's probability at temperature 1, without a filter

    @property
    def shown(self) -> str:
        """The text as a page shows it: a space alone would not be seen."""
        return self.text if self.text.strip() else "␣" * len(self.text)

    @property
    def ratio(self) -> float | None:
        """The probability that speculative sampling accepts this draft token: min(1, p / q)."""
        if self.p is None or self.q is None or self.kind in ("correction", "own"):
            return None
        return min(1.0, self.p / self.q) if self.q else 0.0

    @property
    def elsewhere(self) -> bool:
        """Whether `p` differs from `softmax`."""
        if self.p is None or self.softmax is None:
            return False
        return abs(self.p - self.softmax) > 1e-4


class ShownCall(NamedTuple):
    """One target call, as a page shows it."""

    id: str  # of its HTML element
    number: int  # from 1
    tokens: Sequence[Token]  # the draft tokens, and then the target's token

    @property
    def kept(self) -> list[Token]:
        return [token for token in self.tokens if token.kind in ("accepted", "correction", "own")]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.kept).strip()

    def count(self, *kinds: str) -> int:
        return sum(token.kind in kinds for token in self.tokens)

    @property
    def summary(self) -> str:
        """The numbers of drafted and accepted tokens, and the kind of the last token."""
        drafted = self.count("accepted", "rejected", "untested")
        ends = {"correction": ", then the target's correction", "own": ", then the target's own"}
        end = next((words for kind, words in ends.items() if self.count(kind)), ", the text's end")
        return f"gamma {drafted}: {self.count('accepted')} of {drafted} accepted{end}"

    @property
    def label(self) -> str:
        return f"Call {self.number}, {self.summary}"


@dataclasses.dataclass(frozen=True)
class ShownGeneration:
    """One generated text, as a page shows it. Fields that were not recorded are None or empty."""

    id: str  # of its HTML element
    name: str
    calls: Sequence[ShownCall]
    given: Sequence[Token] = ()  # the prefix that the output had to begin with
    input: str | None = None
    target: str | None = None  # the reference
    output: str | None = None
    plan: str = ""
    times: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> time with unit
    note: str = ""  # a remark on missing probabilities

    @property
    def length(self) -> int:
        return sum(len(call.kept) for call in self.calls)

    @property
    def tokens_per_call(self) -> str:
        return f"{self.length / len(self.calls):.2f}" if self.calls else "–"

    @property
    def accepted(self) -> int:
        return sum(call.count("accepted") for call in self.calls)

    @property
    def tested(self) -> int:
        """The number of draft tokens, including those after a rejected token."""
        return sum(call.count("accepted", "rejected", "untested") for call in self.calls)

    @property
    def excerpt(self) -> str:
        tokens = (token.text for call in self.calls for token in call.kept)
        return self.output or "".join(itertools.islice(tokens, 12))

    @property
    def probable(self) -> bool:
        return any(token.p is not None for token in self._tokens)

    @property
    def softmax(self) -> bool:
        """Whether any token has another probability at temperature 1 without a filter."""
        return any(token.elsewhere for token in self._tokens)

    @property
    def _tokens(self) -> Iterator[Token]:
        return (token for call in self.calls for token in call.tokens)


def read(paths: Iterable[str]) -> Iterator[ShownGeneration]:
    """Yields the generations in files, in order, without those of the target alone.

    Raises ValueError for a file without generations."""
    numbers = itertools.count(1)
    for path in paths:
        for record in _records(path):
            if "part" in record or record.get("mode") == "alone" or "drafted" not in record:
                continue
            try:
                yield _generation(record, f"text-{next(numbers)}")
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise _no_generation(path) from error


def _records(path: str) -> Sequence[Figures]:
    try:
        records = list(Lines(Path(path).resolve(strict=True)))
    except OSError as error:
        raise ValueError(f"--generations {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _no_generation(path) from error
    if not any("drafted" in record for record in records):
        raise _no_generation(path)
    return records


def _no_generation(path: str) -> ValueError:
    return ValueError(
        f"--generations {path} has no generations; give what `specdec decode --explain` wrote to "
        "its --output_file"
    )


def _generation(record: Figures, id: str) -> ShownGeneration:
    explained = record.get("explained", {})
    tokens = _tokens(record["tokens"], explained.get("token_texts"), explained.get("stop_ids", ()))
    prefix = explained.get("given", 0)
    return ShownGeneration(
        id=id,
        name=_name(record),
        calls=list(_calls(record, explained, tokens, prefix, id)),
        given=[Token("given", text, i) for i, text in enumerate(tokens[:prefix], start=1)],
        input=record.get("input"),
        target=record.get("target"),
        output=record.get("prediction"),
        plan=in_words(explained.get("plan", "")),
        times=_times(record, explained),
        note=_note(explained),
    )


def _name(record: Figures) -> str:
    """Returns a title such as "Text 3, sample 1" for a generation."""
    index = record["index"] if "index" in record else record["text"]
    others = ((name, record.get(name)) for name in ("split", "sample", "repeat"))
    return f"Text {index}" + "".join(f", {name} {number}" for name, number in others if number)


def _times(record: Figures, explained: Figures) -> dict[str, str]:
    """Returns name -> measured time of the text, or of the batch that it was decoded in."""
    batch = explained.get("batch")
    if batch and batch["calls"]:
        name = "time" if batch["rows"] == 1 else f"time of {batch['rows']} texts together"
        each = batch["seconds"] / batch["calls"]
        return {name: _ms(batch["seconds"]), "per target call, with prefill": _ms(each)}
    return {"time": _ms(record["seconds"])} if "seconds" in record else {}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _note(explained: Figures) -> str:
    if not explained:
        return "No probabilities were recorded; specdec decode --explain records them."
    if all(q is None for call in explained["q"] for q in call):
        return "There is no q, because the drafter is greedy."
    return ""


def _calls(
    record: Figures, explained: Figures, tokens: Sequence[str], prefix: int, id: str
) -> Iterator[ShownCall]:
    at = prefix
    counts = zip(map(int, record["drafted"]), map(int, record["accepted"]), strict=True)
    for i, (drafted, accepted) in enumerate(counts):
        drafts = _drafts(explained, i, tokens[at : at + accepted], drafted)
        shown = [
            Token(_kind(j, accepted), text, at + j + 1, *map(_number, probabilities))
            for j, (text, *probabilities) in enumerate(drafts)
        ]
        at += accepted
        if at < len(tokens):
            kind = "correction" if accepted < drafted else "own"
            probabilities = (
                explained[name][i] if explained else None for name in ("own_p", "own_q")
            )
            shown.append(Token(kind, tokens[at], at + 1, *map(_number, probabilities)))
            at += 1
        yield ShownCall(f"{id}-call-{i + 1}", i + 1, shown)


def _drafts(
    explained: Figures, call: int, accepted: Sequence[str], drafted: int
) -> Iterable[Sequence[Any]]:
    """Returns (text, p, q, softmax) of each draft token of a call."""
    if not explained:  # only accepted tokens are known
        texts = [*accepted, *["?"] * (drafted - len(accepted))]
        return ((text, None, None, None) for text in texts)
    names = ("proposed", "proposed_texts", "p", "q", "softmax")
    ids, texts, *probabilities = (explained[name][call] for name in names)
    return zip(_tokens(ids, texts, explained["stop_ids"]), *probabilities, strict=True)


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _kind(position: int, accepted: int) -> str:
    if position < accepted:
        return "accepted"
    return "rejected" if position == accepted else "untested"


def _tokens(ids: Sequence[int], texts: Sequence[str] | None, stop_ids: Iterable[int]) -> list[str]:
    """Returns the text of each token, "⟨end⟩" for a stop id, or "#id" for a token without text."""
    shown = texts or [""] * len(ids)
    ends = set(stop_ids)
    return [
        "⟨end⟩" if id in ends else text or f"#{id}" for id, text in zip(ids, shown, strict=True)
    ]
