"""Decoded texts: what `specdec decode` and `specdec eval` make of a run's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from specdec import tasks, terminal
from specdec.cli.programs import Programs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.decoding import row_keys
from specdec.types import DecodeOutput, Params

TextOf: TypeAlias = Callable[[Sequence[int]], str]


class Text(NamedTuple):
    """One example and what became of it. The last two are there if the run compares."""

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
    ours, alone = programs
    params_alone = run.params_alone(params) if alone else None
    samples = range(run.num_samples)
    for batch, sample in ((batch, sample) for batch in batches for sample in samples):
        rows = range(len(batch.input_texts))
        if skip and skip >= len(rows):
            skip -= len(rows)
            continue
        keys = row_keys(run.seed, jnp.asarray(batch.index), sample)
        summary.compile_seconds += ours.compile(batch.inputs.shape[1])
        output, seconds = ours(params, keys, batch.inputs)
        summary.seconds += seconds
        baseline = None
        if alone:
            summary.compile_seconds += alone.compile(batch.inputs.shape[1])
            baseline, seconds = alone(params_alone, keys, batch.inputs)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
        for row in rows[skip:]:
            text = _text(batch, sample, output, baseline, row, text_of)
            summary.texts += 1
            summary.tokens += len(text.tokens) - given
            summary.drafted += text.drafted
            summary.accepted += text.accepted
            summary.identical += text.tokens == text.alone_tokens
            yield text
        skip = 0


def _text(
    batch: tasks.Batch,
    sample: int,
    output: DecodeOutput,
    baseline: DecodeOutput | None,
    row: int,
    text_of: TextOf,
) -> Text:
    tokens, proposed, drafted, accepted = row_of(output, row)
    alone = None if baseline is None else row_of(baseline, row)[0]
    return Text(
        index=int(batch.index[row]),
        sample=sample,
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(tokens),
        tokens=tokens,
        log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(tokens)]],
        proposed=proposed,
        drafted=drafted,
        accepted=accepted,
        alone=None if alone is None else text_of(alone),
        alone_tokens=alone,
    )


def row_of(output: DecodeOutput, row: int) -> tuple[list, list, list, list]:
    """One row's tokens, and its calls: proposed tokens, how many were drafted, and accepted."""
    trace, length, calls = output.trace, output.length[row], output.trace.calls[row]
    return (
        output.tokens[row, :length].tolist(),
        trace.proposed[row, :calls].tolist(),
        trace.drafted[row, :calls].tolist(),
        trace.accepted[row, :calls].tolist(),
    )


def prefix_of(run: DecodeRun, vocabulary: Any) -> list[int]:
    """The ids of the run's decoder prefix, which must leave room for more."""
    ids = list(vocabulary.encode(run.decoder_prefix))
    if len(ids) >= run.lengths["targets"]:
        raise UsageError(
            f"the decoder prefix {run.decoder_prefix!r} has {len(ids)} tokens but targets hold "
            f"{run.lengths['targets']}; raise 'targets' in the feature lengths"
        )
    return ids


def rules(run: DecodeRun) -> str:
    """How the run decodes, in a line for people."""
    if run.drafter is None:
        return f"the target alone, {run.sampling}"
    return f"{type(run.drafter).__name__}, {run.schedule}, {run.verifier}, {run.sampling}"
