"""The beams of a run's texts, as `specdec decode --num_beams` writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np

from specdec import tasks
from specdec.common import terminal
from specdec.common.schemas import INDEX, INPUT, REFERENCE, Count
from specdec.decoding.beam_search import BeamOutput

Beams: TypeAlias = tuple[tuple[Count, ...], ...]  # the ids of each


@dataclasses.dataclass(frozen=True)
class BeamText:
    """One text and its beams, best first, as plain values."""

    index: Annotated[Count, INDEX]
    input: Annotated[str, INPUT]
    target: Annotated[str | None, str, REFERENCE]
    predictions: Annotated[tuple[str, ...], "The texts of the beams, up to their EOS."]
    tokens: Annotated[
        Beams, "Of each beam, its token ids, with its EOS unless it was cut at the longest length."
    ]
    scores: Annotated[
        tuple[float, ...],
        "Of each beam, its log-probability in nats as the rule of the search normalises it by "
        "length.",
    ]
    steps: Annotated[Count, "Steps of the search."]
    calls: Annotated[Count, "Target calls that the search took."]
    alone: Annotated[
        tuple[str, ...] | None,
        tuple[str, ...],
        "The texts of the beams of the target alone; absent without --compare.",
    ] = None
    alone_tokens: Annotated[
        Beams | None,
        Beams,
        "Of each beam of the target alone, its token ids; absent without --compare.",
    ] = None
    # whether all beams of the search, and not only these, are those of the target alone
    same: bool = False
    sample = 0  # a search draws nothing

    LINE: ClassVar = (
        *("index", "input", "target", "predictions", "tokens", "scores", "steps", "calls"),
        *("alone", "alone_tokens"),
    )

    @classmethod
    def row(
        cls,
        batch: tasks.Batch,
        row: int,
        output: BeamOutput,
        baseline: BeamOutput | None,
        vocabulary: tasks.LoadedVocabulary,
        count: int,
    ) -> BeamText:
        """Returns a row of an output."""
        source = batch.input_texts[row]

        def texts(beams: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
            return tuple(tasks.detokenize(vocabulary, ids, source) for ids in beams)

        tokens = tuple(map(tuple, output.texts(row)[:count]))
        others: dict[str, Any] = {}
        if baseline is not None:
            alone = tuple(map(tuple, baseline.texts(row)[:count]))
            same = np.array_equal(baseline.tokens[row], output.tokens[row])
            others = {"alone": texts(alone), "alone_tokens": alone, "same": same}
        filled = np.flatnonzero(output.length[row][:count])  # the others no text has filled
        return cls(
            index=int(batch.index[row]),
            input=source,
            target=batch.target_texts[row] if batch.target_texts else None,
            predictions=texts(tokens),
            tokens=tokens,
            scores=tuple(round(float(output.scores[row, i]), 6) for i in filled),
            steps=output.made(row),
            calls=int(output.trace.calls[row]),
            **others,
        )

    def record(self) -> dict[str, object]:
        """Returns a line for `records.as_json`."""
        fields = {name: getattr(self, name) for name in self.LINE}
        return {name: value for name, value in fields.items() if value is not None}

    def count_in(self, summary: BeamSummary, prefix: int = 0) -> None:
        """Adds this text to the figures of a search, which have no tokens to leave out."""
        del prefix
        summary.texts += 1
        summary.steps += self.steps
        summary.calls += self.calls
        summary.identical += self.same


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
        """Returns the summary in lines for people."""
        per_call = self.steps / max(self.calls, 1)
        texts = f"{self.texts} text{'s' * (self.texts != 1)}"
        lines = [
            f"{texts}, {self.steps} steps of the search in {self.calls} target calls, "
            f"{per_call:.2f} steps per call",
            terminal.whole(spent)
            or f"{self.seconds:.1f} s searching, {self.compile_seconds:.1f} s compiling",
        ]
        if self.compared:
            lines.append(
                f"{self.identical} of {self.texts} with the beams of the target alone, which took "
                f"{self.baseline_seconds:.1f} s"
            )
        return lines
