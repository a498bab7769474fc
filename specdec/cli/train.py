"""`specdec train`: a model, trained on a task."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from specdec.cli import machine, settings, shorthands, train_table
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
    shorthands.add_input_flags(
        parser,
        target="the checkpoint of the model that is drafted for, where the trained one reads its "
        "encoder or states; of --table the model that writes the texts",
        draft="the checkpoint that is trained further; no gin file is needed",
        input_file="lines of input TAB output to train on in place of a task; of --table inputs",
        text="not here: many texts are needed; give --input_file",
        batch_size="texts in each update; of --table those that are decoded together",
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

    files, bindings = shorthands.training_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]
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
