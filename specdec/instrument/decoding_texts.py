"""Decoded texts: what `specdec decode` and `specdec eval` make of a run's batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from specdec import tasks, terminal
from specdec.decoded import DecodedText
from specdec.decoding import Decided, naming_texts, row_keys
from specdec.instrument.explained import ExplainedBatch, replayer
from specdec.instrument.runs import Run
from specdec.program import Decoder, Program, Stepwise, batch_shapes
from specdec.types import Array, DecodeOutput, Params
from specdec.values import UsageError

TextOf: TypeAlias = Callable[[Sequence[int]], str]


class Programs(NamedTuple):
    """The programs of a run; nothing of it is compiled before it is needed."""

    ours: Program  # of the run's plan
    alone: Program | None  # of the target alone, if the run compares
    again: Program | None = None  # of `explained.replayer`, if texts are to be explained


def programs_of(
    run: Run,
    prefix: Sequence[int],
    *,
    stepwise: bool = False,
    explained: bool = False,
    length: int | None = None,
) -> Programs:
    """The programs of a run whose outputs begin with `prefix`.

    Args:
      stepwise: they can be watched.
      explained: there is one more, see `Programs`.
      length: of the first inputs, whose program is then begun to compile; None for not yet.

    Raises:
      UsageError: a combination that cannot work, before anything is compiled.
    """
    mesh, rows = run.placement.mesh, run.data.batch_size
    given = jnp.tile(jnp.array(prefix, jnp.int32), (rows, 1)) if prefix else None
    ours = Decoder(run.plan, mesh=mesh, prefix=given)
    if stepwise and mesh is None and run.plan.drafts:
        ours = Stepwise(run.plan, prefix=given)
    batch = batch_shapes(rows, length or run.data.lengths["inputs"], mesh)
    try:
        ours.lower(run.abstract(), *batch)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if length:
        ours.begin_to_compile(run.abstract(), *batch)
    alone = Decoder(run.alone, mesh=mesh, prefix=given) if run.compare else None
    again = replayer(run.plan, mesh=mesh, prefix=given) if explained else None
    return Programs(ours, alone, again)


# The fields of a line of JSON, in order: of the drafts it has only their lengths.
FIELDS = ("index", "sample", "input", "target", "prediction", "tokens", "log_probs", "drafted")
FIELDS += ("accepted", "alone", "alone_tokens", "explained", "calls")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(DecodedText):
    """One example and what became of it. The last three are there if they are asked for.

    alone: the prediction of the target alone.
    explained: see `ExplainedBatch`.
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

    def record(self) -> dict[str, Any]:
        """Returns a line of JSON, without what is not known."""
        record = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in record.items() if value is not None}


def decoded(
    run: Run,
    params: Params,
    batches: Iterator[tasks.Batch],
    programs: Programs,
    text_of: TextOf,
    summary: terminal.Summary,
    *,
    given: int = 0,
    skip: int = 0,
) -> Iterator[Text]:
    """Decodes batch by batch, each batch sample by sample, and adds up what happened.

    Args:
      given: how many tokens of each output are the prefix.
      skip: how many texts to leave out at the beginning; what is never asked for is not decoded.
    """
    ours, alone, again = programs
    params_alone = run.params_alone(params) if alone else None
    samples = range(run.data.num_samples)
    for batch, sample in ((batch, sample) for batch in batches for sample in samples):
        rows = range(len(batch.input_texts))
        if skip and skip >= len(rows):
            skip -= len(rows)
            continue
        keys = row_keys(run.data.seed, jnp.asarray(batch.index), sample)
        output, seconds = _fetched(ours, params, keys, batch)
        summary.seconds += seconds
        explained = None
        if again:
            trace = output.trace
            decided = Decided(output.tokens, trace.proposed, trace.drafted, trace.accepted)
            replay, _ = again.fetch(params, keys, (batch.inputs, decided))
            explained = ExplainedBatch(run.plan, text_of, given, output, replay, seconds)
        baseline = None
        if alone and params_alone:
            baseline, seconds = _fetched(alone, params_alone, keys, batch)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
        summary.compile_seconds = sum(program.seconds for program in programs if program)
        for row in rows[skip:]:
            more = explained and explained.explained(row)
            text = _text(batch, sample, output, baseline, row, text_of, more)
            summary.texts += 1
            summary.tokens += len(text.tokens) - given
            summary.drafted += text.drafted
            summary.accepted += text.accepted
            summary.layers += text.depths
            summary.broken_drafts += text.broken_drafts
            summary.identical += text.tokens == text.alone_tokens
            yield text
        skip = 0


def _fetched(
    program: Program, params: Params, keys: Array, batch: tasks.Batch
) -> tuple[DecodeOutput, float]:
    """Calls `Program.fetch`; a NonFiniteLogits error names the text by its index."""
    with naming_texts(batch.index):
        return program.fetch(params, keys, batch.inputs)


def _text(
    batch: tasks.Batch,
    sample: int,
    output: DecodeOutput,
    baseline: DecodeOutput | None,
    row: int,
    text_of: TextOf,
    explained: dict[str, Any] | None,
) -> Text:
    tokens = output.row(row).tokens
    alone = None if baseline is None else baseline.row(row).tokens
    return Text.of(
        output,
        row,
        index=int(batch.index[row]),
        sample=sample,
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(tokens),
        log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(tokens)]],
        alone=None if alone is None else text_of(alone),
        alone_tokens=alone,
        explained=explained,
    )
