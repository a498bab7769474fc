"""The beams of a run's texts, as `specdec decode --num_beams` writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np

from specdec import tasks
from specdec.common import terminal
from specdec.common.schemas import Count
from specdec.decoding.beam_search import BeamOutput

Beams: TypeAlias = tuple[tuple[Count, ...], ...]  # the ids of each


@dataclasses.dataclass(frozen=True)
class BeamText:
    """One text and its beams, best first, as plain values.

    Attributes:
      index: The example's place in its split, or the text's among those given, from 0.
      input: The text that was given, with its task prefix.
      target: The reference output; absent if there is none.
      predictions: The texts of the beams, up to their EOS.
      tokens: Of each beam, its token ids, with its EOS unless it was cut at the longest length.
      scores: Of each beam, its log-probability in nats as the rule of the search normalises it by
        length.
      steps: Steps of the search.
      calls: Target calls that the search took.
      alone: The texts of the beams of the target alone; absent without --compare.
      alone_tokens: Of each beam of the target alone, its token ids; absent without --compare.
    """

    index: Count
    input: str
    target: Annotated[str | None, str]
    predictions: tuple[str, ...]
    tokens: Beams
    scores: tuple[float, ...]
    steps: Count
    calls: Count
    alone: Annotated[tuple[str, ...] | None, tuple[str, ...]] = None
    alone_tokens: Annotated[Beams | None, Beams] = None
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
        """Adds this text to the figures of a search; those have no tokens, so no `prefix`."""
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
