"""Decoded texts: the results of `specdec decode` and `specdec eval` for a run's batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from specdec import tasks
from specdec.common import progress, terminal
from specdec.common.decoded import DecodedText
from specdec.common.values import one_line
from specdec.decoding import Decided
from specdec.decoding.program import Program
from specdec.engine import Engine
from specdec.instrument.explained import ExplainedBatch, replayer
from specdec.instrument.runs import Run
from specdec.types import DecodeOutput

TextOf: TypeAlias = Callable[[Sequence[int], str], str]  # of an output and its input


class Ways(NamedTuple):
    """The programs that decode the texts of a run; nothing is compiled before it is needed."""

    ours: Engine
    alone: Engine | None  # the target alone, if the run compares
    again: Program | None = None  # of `explained.replayer`, if texts are to be explained

    @property
    def compile_seconds(self) -> float:
        """The time of all compilations so far."""
        programs = [one.decoder for one in (self.ours, self.alone) if one]
        return sum(one.seconds for one in (*programs, self.again) if one)


def ways_of(
    run: Run,
    engine: Engine,
    *,
    stepwise: bool = False,
    explained: bool = False,
    length: int | None = None,
) -> Ways:
    """Returns the programs that decode a run, checked.

    Args:
      run: the run.
      engine: decodes.
      stepwise: whether the program can be watched.
      explained: whether there is one more program, see `Ways`.
      length: of the first inputs, for which compiling then begins; None for not yet.

    Raises:
      UsageError: the combination cannot work; nothing has been compiled yet.
    """
    plan, mesh, samples = engine.plan, engine.placement.mesh, run.data.num_samples
    longest = run.data.lengths["inputs"]

    def batched(engine: Engine) -> Engine:
        if run.data.refill:
            return engine.refilled(run.data.widths)
        return engine.sampled() if samples > 1 else engine

    with one_line():
        ours = engine.stepwise() if stepwise and mesh is None and plan.drafts else batched(engine)
        ours.check(length or longest, compile=length is not None)
    again = replayer(plan, mesh=mesh, prefix=engine.given_prefix) if explained else None
    return Ways(ours, batched(engine.alone()) if run.compare else None, again)


# The fields of a line of JSON, in order: of the drafts it has only their lengths.
FIELDS = ("index", "sample", "input", "target", "prediction", "tokens", "log_probs", "drafted")
FIELDS += ("accepted", "alone", "alone_tokens", "explained", "calls", "segments")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(DecodedText):
    """One example and its output. The last four fields are optional.

    Attributes:
      alone: the prediction of the target alone.
      alone_tokens: its ids.
      explained: see `ExplainedBatch`.
      segments: of a transcript with timestamps, its parts with their times in seconds.
    """

    index: int
    sample: int
    input: str
    target: str | None
    prediction: str
    log_probs: list[float]
    alone: str | None = None
    alone_tokens: Sequence[int] | None = None
    explained: dict[str, Any] | None = None
    segments: list[dict[str, Any]] | None = None

    def record(self) -> dict[str, Any]:
        """Returns a line of JSON, without unknown values."""
        record = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in record.items() if value is not None}


def decoded(
    run: Run,
    batches: Iterable[tasks.Batch],
    ways: Ways,
    summary: terminal.Summary,
    *,
    skip: int = 0,
) -> Iterator[Text]:
    """Decodes batch by batch, each batch sample by sample, and adds up the figures.

    If rows are refilled, texts of later batches are decoded before a batch is finished.

    Args:
      run: the run.
      batches: its texts.
      ways: its programs.
      summary: gets the figures.
      skip: how many texts to leave out at the beginning. Texts that are not consumed are not
        decoded.
    """
    ours, alone, again = ways
    given, text_of = len(ours.prefix), functools.partial(tasks.detokenize, ours.vocabulary)
    samples, seed = range(run.data.num_samples), run.data.seed
    work, for_ours, for_alone = itertools.tee(_work(batches, samples, skip), 3)
    outputs = ours.outputs(((batch, sample) for batch, sample, _ in for_ours), seed=seed)
    if alone:
        baselines = alone.outputs(((batch, sample) for batch, sample, _ in for_alone), seed=seed)
    else:
        del for_alone  # which would keep all batches
    for batch, sample, rows in work:
        with progress.stage("decoding"):
            output, seconds = next(outputs)
        summary.seconds += seconds
        explained = None
        if again:
            trace, keys = output.trace, ours.keys(batch, seed, sample)
            decided = Decided(output.tokens, trace.proposed, trace.drafted, trace.accepted)
            with progress.stage("explaining"):
                replay, _ = again.fetch(ours.params, keys, (ours.inputs(batch), decided))
            explained = ExplainedBatch(ours.plan, text_of, given, output, replay, seconds)
        baseline = None
        if alone:
            with progress.stage("the target alone"):
                baseline, seconds = next(baselines)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
        summary.compile_seconds = ways.compile_seconds
        for row in rows:
            more = explained and explained.explained(row, batch.input_texts[row])
            text = _text(batch, sample, output, baseline, row, text_of, more)
            text.count_in(summary, given)
            summary.identical += text.tokens == text.alone_tokens
            yield text


def _work(
    batches: Iterable[tasks.Batch], samples: Iterable[int], skip: int
) -> Iterator[tuple[tasks.Batch, int, range]]:
    """Yields each batch and sample, and which rows count: not those of the first `skip` texts."""
    for batch, sample in ((batch, sample) for batch in batches for sample in samples):
        rows = range(len(batch.input_texts))
        if rows[skip:] or not rows:
            yield batch, sample, rows[skip:]
        skip = max(0, skip - len(rows))


def _text(
    batch: tasks.Batch,
    sample: int,
    output: DecodeOutput,
    baseline: DecodeOutput | None,
    row: int,
    text_of: TextOf,
    explained: dict[str, Any] | None,
) -> Text:
    tokens, source = output.row(row).tokens, batch.input_texts[row]
    alone = None if baseline is None else baseline.row(row).tokens
    return Text.of(
        output,
        row,
        index=int(batch.index[row]),
        sample=sample,
        input=source,
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(tokens, source),
        log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(tokens)]],
        alone=None if alone is None else text_of(alone, source),
        alone_tokens=alone,
        explained=explained,
    )
