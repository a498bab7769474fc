"""The decoded texts that `specdec decode` and `specdec eval` write as JSON lines."""

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
    """The field `explained` of a text's JSON line; lists but `token_texts` are by target call."""

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
      index: The example's place in its split, or the text's place in a file, from 0.
      sample: The number of the output among several samples of a text, from 0.
      input: The input text, with the task's prefix.
      target: The reference output; absent if there is none.
      prediction: The text of the output, up to its EOS.
      log_probs: The log-probability of each output token in nats, under the target at temperature
        1, for every sampling rule.
      alone: The output of the target alone; absent without --compare.
      alone_tokens: The token ids of the output of the target alone; absent without --compare.
      segments: The segments of a transcript, each with `start` and `end` in seconds and its `text`;
        absent if transcripts have no timestamps.
    """

    index: Count
    sample: Count
    input: str
    target: Annotated[str | None, str]
    prediction: str
    log_probs: list[float]
    alone: Annotated[str | None, str] = None
    alone_tokens: Annotated[Sequence[int] | None, list[Count]] = None
    alone_calls: int = 0  # target calls when the target decoded alone
    explained: Facts | None = None  # see `ExplainedBatch`
    segments: Annotated[list[TimedText] | None, list[TimedText]] = None

    # The fields of a line of JSON, in order, without the proposed tokens.
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
        """Returns the text of one row of a program's output, with the row of the target alone."""
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
        """Returns the fields of a line of JSON, without absent ones."""
        record = {name: getattr(self, name) for name in (*self.LINE, "explained")}
        return {name: value for name, value in record.items() if value is not None}

    def count_in(self, summary: Summary, prefix: int = 0) -> None:
        super().count_in(summary, prefix)
        summary.identical += self.tokens == self.alone_tokens
        summary.baseline_calls += self.alone_calls
