"""The beams of a run's texts: what `specdec decode --num_beams` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from specdec import tasks
from specdec.decoding.beam_search import BeamOutput
from specdec.engine.beam_engine import BeamEngine


@dataclasses.dataclass(frozen=True)
class BeamText:
    """One text and its beams, as plain values, the best first.

    steps: of the search.
    calls: of the target.
    """

    index: int
    input: str
    target: str | None
    predictions: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    steps: int
    calls: int

    def record(self) -> dict[str, Any]:
        """Returns a line for `records.as_json`."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass
class BeamSummary:
    """What a search took, over all texts."""

    texts: int = 0
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0  # without compiling
    compile_seconds: float = 0.0
    identical: int = 0  # texts whose beams are those of the target alone
    baseline_seconds: float = 0.0
    compared: bool = False

    def lines(self) -> list[str]:
        """Returns the summary in lines for people."""
        per_call = self.steps / max(self.calls, 1)
        texts = f"{self.texts} text{'s' * (self.texts != 1)}"
        found = [
            f"{texts}, {self.steps} steps of the search in {self.calls} target calls, "
            f"{per_call:.2f} steps per call",
            f"{self.seconds:.1f} s searching, {self.compile_seconds:.1f} s compiling",
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
    text_of: Callable[[Sequence[int]], str],
    count: int,
    summary: BeamSummary,
    compare: bool = False,
) -> Iterator[BeamText]:
    """Yields the `count` best beams of each text, and counts in `summary` what they took.

    compare: whether the target searches alone as well.
    """
    alone = engine.alone() if compare else None
    summary.compared = compare
    for batch in batches:
        output, seconds = engine.search(batch)
        summary.seconds += seconds
        same = np.zeros(len(batch.index), bool)
        if alone is not None:
            baseline, seconds = alone.search(batch)
            summary.baseline_seconds += seconds
            same = np.all(baseline.tokens == output.tokens, axis=(1, 2))
        summary.compile_seconds = engine.program.seconds
        for row in range(len(batch.input_texts)):
            text = _text(batch, output, row, text_of, count)
            summary.texts += 1
            summary.steps += text.steps
            summary.calls += text.calls
            summary.identical += bool(same[row])
            yield text


def _text(
    batch: tasks.Batch,
    output: BeamOutput,
    row: int,
    text_of: Callable[[Sequence[int]], str],
    count: int,
) -> BeamText:
    lengths = output.length[row][:count]
    kept = [i for i, length in enumerate(lengths) if length]  # the others no text has filled
    tokens = [tuple(output.tokens[row, i, : lengths[i]].tolist()) for i in kept]
    return BeamText(
        index=int(batch.index[row]),
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        predictions=tuple(text_of(ids) for ids in tokens),
        tokens=tuple(tokens),
        scores=tuple(round(float(output.scores[row, i]), 6) for i in kept),
        steps=int(np.sum(output.trace.steps[row])),
        calls=int(output.trace.calls[row]),
    )
