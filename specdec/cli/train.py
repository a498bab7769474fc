"""`specdec train`: a model, trained on a task."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from specdec.cli import machine, settings, train_table
from specdec.common import records
from specdec.common.values import UsageError


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "train",
        help="train a model on a task",
        description="Trains a model on a task by teacher forcing. A run that was stopped goes on "
        "where its last checkpoint ends, and computes what it would have computed. With --table a "
        "drafter's or schedule's table is made instead.",
        epilog="The parameters are in OUTPUT_DIR/export, for --gin.CHECKPOINT_PATH of the other "
        "commands; a table is in OUTPUT_DIR/table, for --gin.DRAFT_TABLE_PATH "
        "or --gin.SCHEDULE_TABLE_PATH.",
        allow_abbrev=False,
    )
    settings.add_flags(parser)
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="where checkpoints, the log, the settings in force and the export go",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="how many updates in all")
    parser.add_argument("--seed", type=int, metavar="N", help="of parameters and order of the data")
    train_table.add_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.table is not None:
        return train_table.make(args)
    for flag in ("tokens", "passes"):
        if (value := getattr(args, flag)) is not None:
            raise UsageError(f"--{flag} is {value} without --table; name what is to be made")
    from specdec import training  # optax, which no other command needs

    run = settings.build(
        training.TrainRun, args, {"TrainRun.steps": args.steps, "TrainRun.seed": args.seed}
    )
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    try:
        training.train(run, args.output_dir)
    except BaseException as error:
        with contextlib.suppress(OSError):  # what came first is what is told
            _keep_settings(Path(args.output_dir))
        if isinstance(error, training.TrainingError):
            raise UsageError(str(error)) from error
        raise
    _keep_settings(Path(args.output_dir))


def _keep_settings(folder: Path) -> None:
    if (folder / "settings.json").exists():
        records.write(folder / "train.gin", settings.in_force())
