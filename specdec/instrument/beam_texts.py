"""The beams of a run's texts, as `specdec decode --num_beams` writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec import tasks
from specdec.common import progress, terminal
from specdec.decoding.beam_search import BeamOutput
from specdec.engine.beam_engine import BeamEngine


@dataclasses.dataclass(frozen=True)
class BeamText:
    """One text and its beams, best first, as plain values.

    Attributes:
      steps: the steps of the search.
      calls: the target calls.
      alone, alone_tokens: the beams of the target alone, None where it did not search.
    """

    index: int
    input: str
    target: str | None
    predictions: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    steps: int
    calls: int
    alone: tuple[str, ...] | None = None
    alone_tokens: tuple[tuple[int, ...], ...] | None = None

    def record(self) -> dict[str, Any]:
        """Returns a line for `records.as_json`."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass
class BeamSummary:
    """The figures of a search, over all texts."""

    texts: int = 0
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0  # without compiling
    compile_seconds: float = 0.0
    identical: int = 0  # texts whose beams are those of the target alone
    baseline_seconds: float = 0.0
    compared: bool = False

    def lines(self, spent: Mapping[str, float] = {}) -> list[str]:
        """Returns the summary in lines for people.

        Args:
          spent: the seconds of the command by stage, if they are known.
        """
        per_call = self.steps / max(self.calls, 1)
        texts = f"{self.texts} text{'s' * (self.texts != 1)}"
        found = [
            f"{texts}, {self.steps} steps of the search in {self.calls} target calls, "
            f"{per_call:.2f} steps per call",
            terminal.whole(spent)
            or f"{self.seconds:.1f} s searching, {self.compile_seconds:.1f} s compiling",
        ]
        if self.compared:
            found.append(
                f"{self.identical} of {self.texts} with the beams of the target alone, which took "
                f"{self.baseline_seconds:.1f} s"
            )
        return found


def searched(
    engine: BeamEngine,
    batches: Iterable[tasks.Batch],
    text_of: Callable[[Sequence[int], str], str],
    count: int,
    summary: BeamSummary,
    compare: bool = False,
    skip: int = 0,
) -> Iterator[BeamText]:
    """Yields the best beams of each text, and adds the figures of the search to `summary`.

    Args:
      engine: the search.
      batches: the texts.
      text_of: returns the text of an output's ids, with the text of its input.
      count: the number of beams that are kept of each text.
      summary: the figures, which are updated.
      compare: whether the target searches alone as well.
      skip: the number of texts to leave out at the beginning; whole batches of them are not
        searched.
    """
    alone = engine.alone() if compare else None
    summary.compared = compare
    for batch in batches:
        rows = range(len(batch.input_texts))
        if skip and skip >= len(rows):
            skip -= len(rows)
            continue
        with progress.stage("searching"):
            output, seconds = engine.search(batch)
        summary.seconds += seconds
        baseline = None
        if alone is not None:
            with progress.stage("the target alone"):
                baseline, seconds = alone.search(batch)
            summary.baseline_seconds += seconds
        summary.compile_seconds = engine.program.seconds
        for row in rows[skip:]:
            text = _text(batch, output, baseline, row, text_of, count)
            summary.texts += 1
            summary.steps += text.steps
            summary.calls += text.calls
            summary.identical += baseline is not None and bool(
                np.array_equal(baseline.tokens[row], output.tokens[row])
            )
            yield text
        skip = 0


def _text(
    batch: tasks.Batch,
    output: BeamOutput,
    baseline: BeamOutput | None,
    row: int,
    text_of: Callable[[Sequence[int], str], str],
    count: int,
) -> BeamText:
    tokens = tuple(map(tuple, output.texts(row)[:count]))
    alone = None if baseline is None else tuple(map(tuple, baseline.texts(row)[:count]))
    source = batch.input_texts[row]
    kept = np.flatnonzero(output.length[row][:count])  # the others no text has filled
    return BeamText(
        index=int(batch.index[row]),
        input=source,
        target=batch.target_texts[row] if batch.target_texts else None,
        predictions=tuple(text_of(ids, source) for ids in tokens),
        tokens=tokens,
        scores=tuple(round(float(output.scores[row, i]), 6) for i in kept),
        steps=output.made(row),
        calls=int(output.trace.calls[row]),
        alone=None if alone is None else tuple(text_of(ids, source) for ids in alone),
        alone_tokens=alone,
    )
