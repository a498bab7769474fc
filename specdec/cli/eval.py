"""`specdec eval`: the outputs of a run for a split of a task, and their metrics."""

from __future__ import annotations

import argparse
import sys

import jax

from specdec.cli import beams, machine
from specdec.cli import run as runs
from specdec.cli.variants import ready
from specdec.measure.evaluation import METRICS, Evaluation, lines
from specdec.measure.prediction_files import PredictionsFolder, refuse_url


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "eval",
        help="metrics of a split of a task",
        description="Decodes a split of a task and computes metrics of the outputs. Takes the gin "
        "files of `specdec decode`. A run that was interrupted goes on where it stopped when the "
        "command is given again.",
    )
    runs.add_flags(
        parser,
        input_file="lines of input TAB reference in place of a task's",
        text="not here: outputs are compared with references; give --input_file with lines of "
        "input TAB reference",
    )
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="gets predictions.jsonl, one object per text and sample, written as they come, "
        "run.gin, the settings in force, and metrics.json",
    )
    parser.add_argument(
        "--metric",
        action="append",
        choices=sorted(METRICS),
        help="compute this, and not the task's own metrics; may repeat",
    )
    parser.add_argument(
        "--compare",
        action="store_const",
        const=True,
        help="run the target alone as well, for the difference of the metrics, with its 95%% "
        "interval, and the number of identical outputs",
    )
    parser.add_argument(
        "--num_samples",
        type=int,
        metavar="N",
        help="outputs for each text, if it samples; metrics are means over samples",
    )
    parser.add_argument("--metrics_dir", metavar="DIR", help="write the metrics for TensorBoard")
    machine.add_distributed_flag(
        parser,
        "share the texts with the other hosts that run this command; all need the same DIR. With "
        "NUM_PARTITIONS one mesh spans the devices of all hosts",
    )
    runs.add_refill_flag(parser)
    beams.add_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> None:
    refuse_url(args.output_dir)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    machine.refuse_unwritable_folder("--metrics_dir", args.metrics_dir)
    run = runs.opened(args)
    lines_of = "beams" if run.beams else "eval"
    evaluation = Evaluation.of(ready(run, lines=lines_of), args.metric, args.metrics_dir)
    share = run.placement.share()
    folder = PredictionsFolder(args.output_dir, evaluation.variant.settings, share[:2])
    if share.first:  # of the hosts that share rows, the one that writes them
        folder.hold(alone=jax.process_count() == 1)
    report = evaluation.write(folder)
    if report is None:
        print("the metrics are computed on the host that is the last to finish", file=sys.stderr)
        return
    print(*lines(report), f"figures in {folder.metrics}", sep="\n")
