"""`specdec train --table=KIND`: a table for drafters or schedules, made from texts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.checkpoints import tables
from specdec.cli import machine, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.variants import ready
from specdec.common.terminal import counted
from specdec.common.values import PositiveInt, UsageError, check
from specdec.instrument.made_tables import Classifier, count

TOKENS = 100_000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `specdec train` for a table."""
    group = parser.add_argument_group(
        "tables", "in place of a model, for drafters that look things up, and schedules that learn"
    )
    group.add_argument(
        "--table",
        choices=tables.KINDS,
        help="make this from texts that the target of a run of `specdec decode` writes: 'ngram' "
        "for drafters/ngram.gin, 'store' for drafters/retrieval.gin; 'classifier' for "
        "schedules/disco.gin is fitted to --passes of the run",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help=f"of them, in whole texts (default: {TOKENS})",
    )
    group.add_argument(
        "--passes",
        metavar="FILE",
        help="what `specdec acceptance --output_file=FILE` wrote of the run, for a classifier",
    )


def make(args: argparse.Namespace) -> None:
    """Writes OUTPUT_DIR/table."""
    if args.table == "classifier":
        return _fit(args)
    if args.passes is not None:
        raise UsageError(f"--passes is of a classifier, not of {args.table}; leave it out")
    if args.steps is not None:
        raise UsageError("--steps is of a model, and --table makes none; leave one of them out")
    tokens = TOKENS if args.tokens is None else args.tokens
    check("--tokens", tokens, PositiveInt, UsageError)
    overrides = {"Data.seed": args.seed}
    run = _run(args, overrides, {"DRAFTER": None})
    run = dataclasses.replace(run, plan=run.plan.alone())
    one = ready(runs.with_engine(run, unmarked=True))
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    found = count(one, args.table, Path(args.output_dir), tokens)
    size = f"{found.bytes / 1e6:.1f} MB"
    print(f"{found.path}: {found.tokens} tokens of {counted(found.texts, 'text')}, {size}")
    if found.tokens < tokens:
        print(
            f"train: the run's texts end after {found.tokens} of {tokens} tokens; another SPLIT "
            "may have more",
            file=sys.stderr,
        )


def _run(args: argparse.Namespace, *overrides: Mapping[str, Any]) -> DecodeRun:
    """Returns the run of the gin files and of the flags for models and texts."""
    files, bindings = shorthands.input_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]
    return settings.build(DecodeRun, args, *overrides)


def _fit(args: argparse.Namespace) -> None:
    """Makes the classifier of `schedules.Disco`."""
    if args.passes is None:
        raise UsageError(
            "--table=classifier needs --passes=FILE; make it with `specdec acceptance "
            "--output_file=FILE` of this run"
        )
    run = _run(args, {})
    runs.require_drafter(run)
    classifier = Classifier.of(ready(runs.with_engine(run, unmarked=True)), args.passes)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    steps = {"steps": args.steps} if args.steps else {}
    seed, folder = args.seed or 0, Path(args.output_dir)
    print(classifier.fit(folder, seed=seed, say=_say, **steps))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
