"""`specdec decode`: decodes the texts of a task's split, or given texts."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

import jax
import numpy as np

from specdec import tasks
from specdec.checkpoints import generation_settings as generation
from specdec.cli import output, settings, sinks
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.sinks import Texts
from specdec.common.terminal import visible
from specdec.common.values import UsageError
from specdec.texts.measured_run import Run
from specdec.texts.text_engine import TextEngine


def command(args: argparse.Namespace) -> None:
    output.check_new(args)
    if args.dry_run:
        return _show(args)
    run = runs.opened(args)
    _check(args, run)
    source, sink = run.source(), sinks.opened(args, run)
    length, explained = source.length(), args.explain
    engine = TextEngine.open(run, length=length, watch=sink.watch, explained=explained)
    # All checks are done; the long work begins.
    with engine.running(), sink:
        for text in engine.decode(source, everywhere=True):
            sink.write(text)


def _check(args: argparse.Namespace, run: DecodeRun | Run) -> None:
    """Raises UsageError for flags that exclude each other or that do not suit the run."""
    plan = run.plan
    if run.data.refill and jax.process_count() > 1:
        raise UsageError(
            "REFILL and --distributed exclude each other in this command; leave out one, or use "
            "`specdec eval`"
        )
    if args.explain:
        if args.output_file is None:
            raise UsageError("--explain has no --output_file to write to; give one")
        runs.require_drafter(run)
        if run.beams:
            raise UsageError(
                "--explain describes drafted tokens, not beams; leave out --explain or --num_beams"
            )
    if run.compare and plan.exact and not plan.same_output:
        raise UsageError(
            f"compare is set, but {plan.verifier} keeps the output's distribution, not the output; "
            "compare with Coupled() or Greedy(), or compare metrics with `specdec eval`"
        )


def _show(args: argparse.Namespace) -> None:
    """Prints the run as a gin file with its first batch in comments.

    No parameters are read. For a task, no vocabulary is read from a checkpoint either.
    """
    run = runs.resolved(args)
    Texts(run.data, run.beams, functools.partial(runs.vocabulary_of, run)).check(args)
    _check(args, run)
    vocabulary = None if run.data.texts is None else runs.vocabulary_of(run)
    source = run.data.source(run.placement.share(), None, vocabulary, run.plan.target)
    batch = next(iter(source), None)
    if batch is None:
        raise UsageError("there is no example, so nothing to decode; check the split and the data")
    print(settings.in_force())
    print(*_text_lines(run), *_batch_lines(batch), sep="\n")


def _text_lines(run: DecodeRun) -> Iterator[str]:
    """Yields the vocabulary, ids and settings that the target's checkpoint has, and their files."""
    if (text := runs.text_of(run.checkpoint_path)) is not None:
        yield visible(f"# The target's text side, from {text.directory}:")
        ignored, beams = run.generation_settings == "ignore", run.beams.num_beams
        rule = run.beams.beam_rule() if run.beams else None
        if rule is not None and not ignored:
            rule = generation.searched(rule, text)
        taken = {} if ignored else generation.taking_part(run.plan, text, beams)
        ours = generation.replaced(run.plan, run.generation_settings, rule, beams)
        in_effect = {k: x for k, x in taken.items() if ours.get(k, x.value) == x.value}
        for what, note in text.lines(in_effect):
            yield visible(f"#   {what}: {note}")
        if ignored:
            yield "#   its generation settings are ignored, except for ids"
        yield f"#   decoding: {run.plan.sampling}"
        if rule is not None:
            yield f"#   search: {beams} beams, {rule}"


def _batch_lines(batch: tasks.Batch) -> Iterator[str]:
    """Yields the shapes of a batch, then each example as text and as ids without padding."""
    yield f"# The first batch: {_shape('inputs', batch.ids)}"
    if batch.targets is not None:
        yield f"#                  {_shape('targets', batch.targets)}"
    for row, text in enumerate(batch.input_texts):
        yield f"# example {batch.index[row]}"
        yield from _feature("inputs", text, batch.ids[row], batch.pad_id)
        if batch.target_texts is not None and batch.targets is not None:
            targets = batch.target_texts[row], batch.targets[row]
            yield from _feature("targets", *targets, batch.pad_id)


def _shape(name: str, array: np.ndarray) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _feature(name: str, text: str, ids: np.ndarray, pad_id: int) -> Iterator[str]:
    yield f"#   {name}: {text!r}"
    yield f"#   {' ' * len(name)}  {ids[ids != pad_id].tolist()}"
