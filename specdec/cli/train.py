"""`specdec train`: a model, trained on a task."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from specdec.checkpoints import tables
from specdec.cli import machine, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.variants import ready
from specdec.common import hosts, records
from specdec.common.terminal import counted
from specdec.common.values import PositiveInt, UsageError, check
from specdec.instrument.distillation.made_tables import Classifier, count

TOKENS = 100_000  # of the texts that a table is made from


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
    machine.add_distributed_flag(
        parser,
        "train one model over the devices of all hosts that run this command, which NUM_PARTITIONS "
        "makes one mesh; all need the same DIR. A signal to one of them ends all, as if each had "
        "got it",
    )
    _add_table_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.table is not None:
        return _make_table(args)
    for flag in ("tokens", "passes"):
        if (value := getattr(args, flag)) is not None:
            raise UsageError(f"--{flag} is {value} without --table; name what is to be made")
    from specdec import training  # optax, which no other command needs

    files, bindings = shorthands.training_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]
    run = settings.build(
        training.TrainRun, args, {"TrainRun.steps": args.steps, "TrainRun.seed": args.seed}
    )
    machine.refuse_no_mesh(args, run.placement.partitioner.num_partitions)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    machine.join_other_hosts(args)
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
    if hosts.is_first() and (folder / "settings.json").exists():
        records.write(folder / "train.gin", settings.in_force())


def _add_table_flags(parser: argparse.ArgumentParser) -> None:
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


def _make_table(args: argparse.Namespace) -> None:
    """Writes OUTPUT_DIR/table."""
    if args.distributed is not None:
        raise UsageError("--distributed is of a model, not of --table; leave one of them out")
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


def _run(
    args: argparse.Namespace,
    overrides: Mapping[str, object],
    unneeded: Mapping[str, object] = MappingProxyType({}),
) -> DecodeRun:
    """Returns the run of the gin files and of the flags for models and texts."""
    files, bindings = shorthands.input_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]
    return settings.build(DecodeRun, args, overrides, unneeded)


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
