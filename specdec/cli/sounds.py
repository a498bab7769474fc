"""Texts, lines and subtitles that `specdec decode` writes of sounds of several windows."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import jax

from specdec import tasks
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.common import progress, terminal
from specdec.common.subtitles import FORMATS, subtitles
from specdec.common.values import UsageError, one_line
from specdec.instrument.runs import Run
from specdec.instrument.transcripts import Transcriber, has_timestamps

Given: TypeAlias = Iterator[tuple[str, None]]


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag."""
    parser.add_argument(
        "--subtitles",
        metavar="FILE",
        help="of one sound: write its transcript with times as subtitles, to FILE.srt or FILE.vtt "
        "(WebVTT)",
    )


def settings_of(args: argparse.Namespace) -> dict[str, bool | None]:
    """Returns the settings of the flag.

    Raises:
      UsageError: it asks for another kind of file, or the settings are not those of sound.
    """
    if args.subtitles is None:
        return {}
    if Path(args.subtitles).suffix[1:] not in FORMATS:
        raise UsageError(f"--subtitles is {args.subtitles}; give FILE.srt or FILE.vtt")
    path = Path(args.subtitles)
    if path.exists() or not os.access(path.parent, os.W_OK):
        what = "exists; delete it, or give" if path.exists() else "cannot be written; give"
        raise UsageError(f"--subtitles: {path} {what} another file")
    if not settings.binds(args, "checkpoints.Transcribed"):
        raise UsageError(
            f"--subtitles={args.subtitles} is for sound; give --gin_file=transcribe.gin as well"
        )
    return {"Transcribed.timestamps": True}


def transcriber_of(args: argparse.Namespace, run: Run, lines: Given | None) -> Transcriber | None:
    """Returns what transcribes the given sounds; None for other runs, and sounds of one window.

    Args:
      args: the flags.
      run: the run.
      lines: standard input, which may name sounds of any length; None for the texts of the run.

    Raises:
      UsageError: a flag is not for such sounds.
      TaskError: a sound cannot be read.
    """
    given = run.data.texts or ()
    sounds = tasks.is_sound(run.engine.vocabulary) and run.data.task is None
    if args.subtitles is not None and not (sounds and len(given) == 1 == run.data.num_samples):
        raise UsageError(
            f"--subtitles={args.subtitles} is for one transcript of one sound; give one --text, or "
            "leave it out"
        )
    if not sounds:
        return None
    frames = run.engine.plan.target.inputs_shape(1, 1).shape[-1]
    several = has_timestamps(run.engine) or not all(tasks.fits_window(x, frames) for x, _ in given)
    if not several and lines is None:
        return None
    refused = {
        "--explain": args.explain,
        "REFILL": run.data.refill,
        "NUM_BEAMS": run.beams is not None,
        "--distributed": jax.process_count() > 1,
    }
    if asked := [name for name, is_asked in refused.items() if is_asked]:
        raise UsageError(
            f"{asked[0]} is for sounds of one window without timestamps; leave it out, or name "
            "parts with --text, as in talk.wav#0 and talk.wav#30"
        )
    return Transcriber(run.engine, several)


def write(
    args: argparse.Namespace, run: Run, transcriber: Transcriber, lines: Given | None
) -> None:
    """Writes transcripts: lines of JSON, subtitles, and one plain text per line.

    Args:
      args: the flags.
      run: the run.
      transcriber: transcribes.
      lines: standard input; None for the texts of the run.
    """
    engine, data = run.engine, run.data
    with one_line():
        engine.check(1)
    in_force = runs.in_force(run, "decode") if args.output_file else ""
    engine.load()
    file = settings.json_lines(args.output_file, in_force)
    summary = terminal.Summary(exact=run.plan.exact)
    names = (name for name, _ in itertools.islice(lines or data.texts or (), data.limit))
    alone = Transcriber(engine.alone()) if run.compare else None
    how = {"seed": data.seed, "samples": range(data.num_samples), "alone": alone}
    try:
        for text in transcriber.texts(names, summary, **how):
            if file:
                file.append(text.record())
            if args.subtitles is not None:
                kind = Path(args.subtitles).suffix[1:]
                made = subtitles(text.segments or (), kind)
                Path(args.subtitles).write_text(made, encoding="utf-8")
            elif not args.output_file or sys.stdout.isatty():
                print(terminal.one_line(text.prediction), flush=True)
    finally:
        if summary.texts:
            print(run.plan, *summary.lines(progress.spent()), sep="\n", file=sys.stderr)
