"""`specdec train`: trains a model on a task."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specdec import tasks
from specdec.cli import machine, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.variants import ready
from specdec.common.values import PositiveInt, UsageError, check
from specdec.training.distillation.made_tables import TOKENS, make

if TYPE_CHECKING:
    from specdec.training import TrainRun


def command(args: argparse.Namespace) -> None:
    _refuse_flags_of_others(args)
    shorthands.add_input_settings(args, training=args.table is None)
    if args.table is None:
        from specdec import training  # optax, which no other command needs

        flags = {"TrainRun.steps": args.steps, "TrainRun.seed": args.seed}
        run = settings.build(training.TrainRun, args, flags)
    elif args.table == "classifier":
        run = settings.build(DecodeRun, args, {})
    else:
        run = settings.build(DecodeRun, args, {"Data.seed": args.seed}, {"DRAFTER": None})
    machine.prepare_training(args, run.placement.partitioner.num_partitions)
    if isinstance(run, DecodeRun):
        _make_table(args, run)
    else:
        _train(args, run)


def _refuse_flags_of_others(args: argparse.Namespace) -> None:
    """Raises UsageError for a flag that does not suit what is made: a model or a kind of table."""
    if args.table is None:
        for flag in ("tokens", "passes"):
            if (value := getattr(args, flag)) is not None:
                raise UsageError(f"--{flag} is {value} without --table; name the table to make")
        return
    if args.distributed is not None:
        raise UsageError("--distributed is for models, not for --table; leave one of them out")
    if args.table == "classifier":
        if args.passes is None:
            raise UsageError(
                "--table=classifier needs --passes=FILE; make it with `specdec acceptance "
                "--output_file=FILE` of this run"
            )
        return
    if args.passes is not None:
        raise UsageError(f"--passes is for --table=classifier, not for {args.table}; leave it out")
    if args.steps is not None:
        raise UsageError(f"--steps is not for {args.table}; leave it out")
    if args.tokens is not None:
        check("--tokens", args.tokens, PositiveInt, UsageError)


def _train(args: argparse.Namespace, run: TrainRun) -> None:
    """Trains a model."""
    from specdec import training
    from specdec.training import cards

    try:
        training.train(run, args.output_dir, settings.in_force)
    except training.TrainingError as error:
        raise UsageError(str(error)) from error
    begun = run.initial_path if isinstance(run.initial_path, Mapping) else {"": run.initial_path}
    sources = {f"initial checkpoint {part}".strip(): path for part, path in begun.items()}
    texts = f"split {run.split} of {tasks.get_task(run.task).name}"
    sources |= {"target": run.target_path, "texts": texts}
    folder = Path(args.output_dir)
    cards.write(folder, folder.resolve().name, sources, args.command_line, settings.in_force())


def _make_table(args: argparse.Namespace, run: DecodeRun) -> None:
    """Makes the table of a drafter, or of `schedules.Disco`."""
    if args.table == "classifier":
        runs.require_drafter(run)
    else:
        run = dataclasses.replace(run, plan=run.plan.alone())
    report = make(
        ready(runs.with_engine(run, unmarked=True)),
        args.table,
        Path(args.output_dir),
        tokens=TOKENS if args.tokens is None else args.tokens,
        passes=args.passes,
        seed=args.seed or 0,
        steps=args.steps or None,
        say=_say,
    )
    print(report)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
