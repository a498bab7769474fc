"""Shows a run instead of running it, for `--dry_run`: its settings, and its first batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from specdec import tasks
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.common.values import UsageError


def show(run: DecodeRun, texts: Iterable[tuple[str, str | None]] | None = None) -> None:
    """Prints the run as a gin file with its first batch, of `texts` or of the task, in comments.

    No parameters are read, and for a task no checkpoint is asked for its vocabulary.
    """
    if texts is None:
        vocabulary = runs.vocabulary_of(run) if run.data.texts is not None else None
        batches = run.data.batches(run.placement.share(), vocabulary=vocabulary)
    else:
        batches = run.data.text_batches(texts, runs.vocabulary_of(run))
    batch = next(batches, None)
    if batch is None:
        raise UsageError("there is no example, so nothing to decode; check the split and the data")
    print(settings.in_force())
    print(*_text_lines(run), *_lines(batch), sep="\n")


def _text_lines(run: DecodeRun) -> Iterator[str]:
    """Yields the text side of the target's checkpoint: each fact with its file."""
    if (text := runs.text_of(run.checkpoint_path)) is not None:
        yield f"# The target's text side, from {text.directory}:"
        for what, note in text.lines():
            yield f"#   {what}: {note}"
        if run.generation_settings == "ignore":
            yield "#   its generation settings are ignored, ids aside"
        yield f"#   decoding: {run.plan.sampling}"


def _lines(batch: tasks.Batch) -> Iterator[str]:
    """Yields shapes, then each example as text and as ids without padding."""
    yield f"# The first batch: {_shape('inputs', batch.inputs)}"
    if batch.targets is not None:
        yield f"#                  {_shape('targets', batch.targets)}"
    for row, text in enumerate(batch.input_texts):
        yield f"# example {batch.index[row]}"
        yield from _feature("inputs", text, batch.inputs[row], batch.pad_id)
        if batch.target_texts is not None and batch.targets is not None:
            targets = batch.target_texts[row], batch.targets[row]
            yield from _feature("targets", *targets, batch.pad_id)


def _shape(name: str, array: np.ndarray) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _feature(name: str, text: str, ids: np.ndarray, pad_id: int) -> Iterator[str]:
    yield f"#   {name}: {text!r}"
    yield f"#   {' ' * len(name)}  {ids[ids != pad_id].tolist()}"
