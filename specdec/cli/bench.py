"""`specdec bench`: how fast speculation is on a run's texts, one text at a time."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec import benchmark
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.environment import environment

LIMIT = 32


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="measure the speed-up",
        description="Times a target alone and with a drafter, by turns in one process, one text at "
        "a time whatever BATCH_SIZE and BUCKETS say, and the models' parts on their own. Takes the "
        f"gin files of `specdec decode`. Measures {LIMIT} texts unless there is a limit.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per generation or timing of a part, the figures to "
        "FILE.summary.json, and the settings in force to FILE.gin",
    )
    parser.add_argument(
        "--profile_dir",
        metavar="DIR",
        help="also write an xprof trace of one text's generations, after the measurement",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise UsageError(f"--repeats is {args.repeats}; give a positive number")
    run = runs.build(args)
    if run.batch_size != 1 or run.buckets:
        print("bench: one text at a time, all padded to one length", file=sys.stderr)
    if run.decoder_prefix:
        raise UsageError(
            f"decoder_prefix is {run.decoder_prefix!r}; leave it out, whole outputs are measured"
        )
    limit = LIMIT if run.limit is None else run.limit
    try:
        run = dataclasses.replace(run, batch_size=1, buckets=(), limit=limit)
    except ValueError as error:  # a mesh that divides rows
        raise UsageError(str(error)) from error
    subject = _subject(run, runs.vocabulary_of(run).eos_id)
    batches = run.batches()
    try:
        lowered = benchmark.lower(subject, run.abstract(), run.lengths["inputs"])
    except ValueError as error:
        raise UsageError(str(error)) from error
    runs.refuse_unwritable(args.output_file)
    # All that can be wrong has been looked at; from here on it takes long.
    params = run.load()
    texts = {int(batch.index[0]): batch.inputs for batch in batches}
    if not texts:
        raise UsageError(f"split {run.split!r} has no examples; nothing to measure")
    programs, compile_seconds = benchmark.compiled(lowered)
    records = benchmark.measure(programs, params, texts, seed=run.seed, repeats=args.repeats)
    total = 2 * args.repeats * len(texts)
    summary = benchmark.summarize(
        _written(records, total, args.output_file),
        gamma=subject.gamma,
        same_output=subject.same_output,
    )
    print(*benchmark.lines(summary), sep="\n")
    if args.profile_dir:
        benchmark.profile(programs, params, texts, seed=run.seed, path=args.profile_dir)
    if args.output_file:
        report = {
            "environment": environment(),
            "run": _described(run, subject, args.repeats, params),
            "compile_seconds": compile_seconds,
            **dataclasses.asdict(summary),
        }
        text = json.dumps(report, indent=2, ensure_ascii=False)
        Path(f"{args.output_file}.summary.json").write_text(f"{text}\n", encoding="utf-8")


def _subject(run: DecodeRun, eos_id: int) -> benchmark.Subject:
    return benchmark.Subject(
        target=run.target,
        drafter=runs.drafter_of(run),
        verifier=run.verifier,
        schedule=run.schedule,
        sampling=run.rule(eos_id),
        max_length=run.lengths["targets"],
        eos_id=eos_id,
    )


def _written(
    records: Iterable[benchmark.Generation | benchmark.Timing], total: int, path: str | None
) -> Iterator[benchmark.Generation | benchmark.Timing]:
    """The records, each written before the next is measured, under a bar if there is a terminal."""
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(
            tqdm(total=total, unit="generation", leave=False, disable=not sys.stderr.isatty())
        )
        file = None
        if path:
            Path(f"{path}.gin").write_text(settings.in_force(), encoding="utf-8")
            file = stack.enter_context(open(path, "w", encoding="utf-8"))
        for record in records:
            if file:
                print(json.dumps(record._asdict()), file=file, flush=True)
            bar.update(isinstance(record, benchmark.Generation))
            yield record


def _described(
    run: DecodeRun, subject: benchmark.Subject, repeats: int, params: Any
) -> dict[str, Any]:
    """What was measured, for the report."""
    return {
        "gamma": subject.gamma,
        "drafter": type(run.drafter).__name__,
        "schedule": repr(run.schedule),
        "verifier": repr(run.verifier),
        "sampling": repr(subject.sampling),
        "dtype": {role: model.config.dtype for role, (model, _) in run.models().items()},
        "parameters": runs.parameter_counts(params),
        "lengths": dict(run.lengths),
        "split": run.split,
        "seed": run.seed,
        "limit": run.limit,
        "repeats": repeats,
    }
