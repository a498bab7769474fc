"""Decoded texts: what `specdec decode` and `specdec eval` make of a run's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from specdec import tasks, terminal
from specdec.cli import explain
from specdec.cli.run import DecodeRun
from specdec.cli.settings import one_line
from specdec.decoding import Decided, naming_texts, row_keys
from specdec.program import Decoder, Program, Stepwise, batch_shapes
from specdec.types import Array, DecodeOutput, Params

TextOf: TypeAlias = Callable[[Sequence[int]], str]


class Programs(NamedTuple):
    """The programs of a run; none is compiled before it is needed."""

    ours: Program  # of the run's plan
    alone: Program | None  # of the target alone, if the run compares
    again: Program | None = None  # of `explain.replayer`, if texts are to be explained


def programs_of(
    run: DecodeRun,
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
    with one_line():
        ours.lower(run.abstract(), *batch)
    if length:
        ours.begin_to_compile(run.abstract(), *batch)
    alone = Decoder(run.alone, mesh=mesh, prefix=given) if run.compare else None
    again = explain.replayer(run.plan, mesh=mesh, prefix=given) if explained else None
    return Programs(ours, alone, again)


class Text(NamedTuple):
    """One example and what became of it. The last three are there if they are asked for."""

    index: int
    sample: int
    input: str
    target: str | None
    prediction: str
    tokens: list[int]
    log_probs: list[float]
    proposed: list[list[int]]  # this and the next two: one entry per target call
    drafted: list[int]
    accepted: list[int]
    alone: str | None = None  # the prediction of the target alone
    alone_tokens: list[int] | None = None
    explained: dict[str, Any] | None = None  # see `explain.Batch`

    def record(self) -> dict[str, Any]:
        """A line of JSON: all there is, but of the drafts only their lengths."""
        record = self._asdict() | {"calls": len(self.drafted)}
        del record["proposed"]
        return {name: value for name, value in record.items() if value is not None}


def decoded(
    run: DecodeRun,
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
            explained = explain.Batch(run.plan, text_of, given, output, replay, seconds)
        baseline = None
        if alone and params_alone:
            baseline, seconds = _fetched(alone, params_alone, keys, batch)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
        summary.compile_seconds = sum(program.seconds for program in programs if program)
        for row in rows[skip:]:
            text = _text(batch, sample, output, baseline, row, text_of)
            if explained:
                text = text._replace(explained=explained.explained(row))
            summary.texts += 1
            summary.tokens += len(text.tokens) - given
            summary.drafted += text.drafted
            summary.accepted += text.accepted
            summary.layers += output.depths(row)
            summary.broken_drafts += int(output.trace.broken_drafts[row])
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
) -> Text:
    ours = output.row(row)
    alone = None if baseline is None else baseline.row(row).tokens
    return Text(
        index=int(batch.index[row]),
        sample=sample,
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(ours.tokens),
        log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(ours.tokens)]],
        **ours._asdict(),
        alone=None if alone is None else text_of(alone),
        alone_tokens=alone,
    )
