"""The outputs of `specdec decode --num_beams`: the beams of each text, and a summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np

from specdec import tasks
from specdec.common import terminal
from specdec.common.schemas import Count
from specdec.decoding.beam_search import BeamOutput

Beams: TypeAlias = tuple[tuple[Count, ...], ...]  # the token ids of each beam


@dataclasses.dataclass(frozen=True)
class BeamText:
    """One text and its returned beams, the best beam first.

    Attributes:
      index: The example's place in its split, or the text's place in a file, from 0.
      input: The input text, with the task's prefix.
      target: The reference output; absent if there is none.
      predictions: The text of each beam, up to its EOS.
      tokens: The token ids of each beam, with EOS unless it was cut at the maximum length.
      scores: The score of each beam: its log-probability in nats, normalised by length.
      steps: The number of steps of the search.
      calls: The number of target calls of the search.
      alone: The text of each beam of the target alone; absent without --compare.
      alone_tokens: The token ids of each beam of the target alone; absent without --compare.
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
    same: bool = False  # whether all beams, also unreturned ones, equal the target's beams
    sample = 0  # beam search is deterministic

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
        """Returns the text of one row of a search's output, with its best `count` beams."""
        source = batch.input_texts[row]

        def texts(beams: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
            return tuple(tasks.detokenize(vocabulary, ids, source) for ids in beams)

        tokens = tuple(map(tuple, output.texts(row)[:count]))
        others: dict[str, Any] = {}
        if baseline is not None:
            alone = tuple(map(tuple, baseline.texts(row)[:count]))
            same = np.array_equal(baseline.tokens[row], output.tokens[row])
            others = {"alone": texts(alone), "alone_tokens": alone, "same": same}
        filled = np.flatnonzero(output.length[row][:count])  # other beams are empty
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
        """Returns the fields of a line of JSON, without absent ones."""
        fields = {name: getattr(self, name) for name in self.LINE}
        return {name: value for name, value in fields.items() if value is not None}

    def count_in(self, summary: BeamSummary, prefix: int = 0) -> None:
        """Adds this text to the summary, which ignores the length of the prefix."""
        del prefix
        summary.texts += 1
        summary.steps += self.steps
        summary.calls += self.calls
        summary.identical += self.same


@dataclasses.dataclass
class BeamSummary:
    """The totals of a beam search over all texts."""

    texts: int = 0
    steps: int = 0
    calls: int = 0  # of the target
    seconds: float = 0.0  # without compilation
    compile_seconds: float = 0.0
    identical: int = 0  # texts whose beams equal those of the target alone
    baseline_seconds: float = 0.0  # of the target alone
    compared: bool = False  # whether the target alone ran as well

    def lines(self, spent: Mapping[str, float] = {}) -> list[str]:
        """Returns the printed lines of the summary; `spent` maps a stage to its seconds."""
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
