"""Decoded texts, as `specdec decode` and `specdec eval` write them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypedDict

from specdec import tasks
from specdec.common.decoded import DecodedText
from specdec.common.schemas import Count
from specdec.common.subtitles import TimedText
from specdec.common.terminal import Summary
from specdec.types import DecodeOutput


class Facts(TypedDict):
    """The field `explained` of a text; its lists have an entry per target call."""

    plan: str
    given: int
    stop_ids: list[int]
    batch: dict[str, float | None]
    token_texts: list[str]
    proposed: list[list[int]]
    proposed_texts: list[list[str]]
    p: list[list[float | None]]
    q: list[list[float | None]]
    softmax: list[list[float | None]]
    own_p: list[float | None]
    own_q: list[float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(DecodedText):
    """One example and its output.

    Attributes:
      index: The example's place in its split, or the text's among those given, from 0.
      sample: Which of the text's outputs, from 0; 0 unless several are sampled.
      input: The text that was given, with its task prefix.
      target: The reference output; absent if there is none.
      prediction: The text of the output, up to its EOS.
      log_probs: Of each token, its log-probability in nats under the target at temperature 1,
        whatever the sampling.
      alone: The text that the target alone writes; only where the run compares.
      alone_tokens: Token ids of what the target alone writes; only where the run compares.
      segments: The parts of a transcript, each with `start` and `end` in seconds and its `text`;
        only where sound has timestamps.
    """

    index: Count
    sample: Count
    input: str
    target: Annotated[str | None, str]
    prediction: str
    log_probs: list[float]
    alone: Annotated[str | None, str] = None
    alone_tokens: Annotated[Sequence[int] | None, list[Count]] = None
    alone_calls: int = 0  # of the target alone
    explained: Facts | None = None  # see `ExplainedBatch`
    segments: Annotated[list[TimedText] | None, list[TimedText]] = None

    # The fields of a line of JSON, in order: of the drafts it has only their lengths.
    LINE: ClassVar = (
        *("index", "sample", "input", "target", "prediction", "tokens", "log_probs", "drafted"),
        *("accepted", "alone", "alone_tokens", "calls", "segments"),
    )

    @classmethod
    def row(
        cls,
        batch: tasks.Batch,
        row: int,
        output: DecodeOutput,
        baseline: DecodeOutput | None,
        vocabulary: tasks.LoadedVocabulary,
        **others: Any,
    ) -> Text:
        """Returns a row of an output."""
        source = batch.input_texts[row]
        text_of = functools.partial(tasks.detokenize, vocabulary, source=source)
        tokens = output.row(row).tokens
        if baseline is not None:
            alone = baseline.row(row).tokens
            others |= {"alone": text_of(alone), "alone_tokens": alone}
            others["alone_calls"] = int(baseline.trace.calls[row])
        return cls.of(
            output,
            row,
            index=int(batch.index[row]),
            input=source,
            target=batch.target_texts[row] if batch.target_texts else None,
            prediction=text_of(tokens),
            log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(tokens)]],
            **others,
        )

    def record(self) -> dict[str, object]:
        """Returns a line of JSON, without unknown values."""
        record = {name: getattr(self, name) for name in (*self.LINE, "explained")}
        return {name: value for name, value in record.items() if value is not None}

    def count_in(self, summary: Summary, prefix: int = 0) -> None:
        super().count_in(summary, prefix)
        summary.identical += self.tokens == self.alone_tokens
        summary.baseline_calls += self.alone_calls
