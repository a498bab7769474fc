"""What was measured: JSON lines that an interrupted run goes on with, and their table."""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec.common.records import Lines
from specdec.common.statistics import bootstrap

OURS = {"alone": "specdec alone", "speculative": "specdec speculative"}
PEERS = {
    "huggingface": "Hugging Face generate",
    "huggingface_assistant": "Hugging Face assistant_model",
    "huggingface_lookup": "Hugging Face prompt_lookup_num_tokens",
    "huggingface_compiled": "Hugging Face static cache, torch.compile",
    "ctranslate2_float32": "CTranslate2 float32",
    "ctranslate2_int8": "CTranslate2 int8",
    "t5x": "T5X temperature_sample",
}
LABELS = OURS | PEERS | {"chronos": "chronos-forecasting"}


class Record(NamedTuple):
    """One generation of one text: its seconds, and its ids with EOS."""

    peer: str  # a key of LABELS
    text: int  # the example's index
    repeat: int
    seconds: float
    tokens: list[int]


class File:
    """Records in a file, with all that the seconds depend on in FILE.about.json.

    about: plain values; 'gin' is the text of the settings in force.

    Raises:
      RecordsError: the file is about something else.
    """

    def __init__(self, path: str, about: Mapping[str, Any]):
        self._lines = Lines.of(Path(path), f"{json.dumps(about, indent=2)}\n", ".about.json")

    def resume(self, peers: Iterable[str]) -> set[tuple[int, int]]:
        """Pairs of a repeat and a text that all these peers have had; the file keeps no others."""
        kept = complete(read(self._lines.path), peers)
        self._lines.replace(record._asdict() for record in kept)
        return {(record.repeat, record.text) for record in kept}

    def write(self, record: Record) -> None:
        """At once."""
        self._lines.append(record._asdict())


def read(path: str | Path) -> list[Record]:
    """The records of a file, but for a last line that a kill has torn."""
    return [Record(**fields) for fields in Lines(Path(path))]


def complete(records: Sequence[Record], peers: Iterable[str]) -> list[Record]:
    """Those of turns that all of the peers have had."""
    seen = collections.defaultdict(set)
    for one in records:
        seen[one.repeat, one.text].add(one.peer)
    return [one for one in records if seen[one.repeat, one.text] >= set(peers)]


def lines(records: Sequence[Record]) -> Iterator[str]:
    """A table in Markdown, line by line: an engine each, in the order of LABELS."""
    peers = [peer for peer in LABELS if any(one.peer == peer for one in records)]
    records = complete(records, peers)
    seconds = {peer: _medians(records, peer, lambda one: one.seconds) for peer in peers}
    alone = {(one.repeat, one.text): one.tokens for one in records if one.peer == "alone"}
    columns = "seconds", *(f"times {name} (95 %)" for name in OURS.values()), "ms per token"
    yield f"| engine | {' | '.join(columns)} | identical |"
    yield f"|---|{'---:|' * len(columns)}---|"
    for peer in peers:
        generations = [one for one in records if one.peer == peer]
        same = sum(one.tokens == alone[one.repeat, one.text] for one in generations)
        total = seconds[peer].sum()
        tokens = _medians(records, peer, lambda one: len(one.tokens)).sum()
        cells = (
            LABELS[peer],
            f"{total:.3f}",
            *(_ratio(seconds[peer], seconds[ours]) for ours in OURS),
            f"{1e3 * total / tokens:.2f}",
            f"{same} of {len(generations)}",
        )
        yield f"| {' | '.join(cells)} |"


def _medians(records: Sequence[Record], peer: str, value: Callable[[Record], float]) -> np.ndarray:
    """Over repeats, of each text in the order of their indices."""
    values = collections.defaultdict(list)
    for one in records:
        if one.peer == peer:
            values[one.text].append(value(one))
    return np.array([statistics.median(values[text]) for text in sorted(values)])


def _ratio(seconds: np.ndarray, reference: np.ndarray) -> str:
    """Of the sums over texts, with the bootstrap interval of both engines' texts together."""
    low, high = bootstrap(np.stack([seconds, reference]), lambda sums: sums[0] / sums[1])
    return f"{seconds.sum() / reference.sum():.2f} ({low:.2f} to {high:.2f})"
