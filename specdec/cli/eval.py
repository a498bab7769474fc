"""`specdec eval`: decodes a split of a task and computes the metrics of the outputs."""

from __future__ import annotations

import argparse
import sys

import jax

from specdec.cli import machine
from specdec.cli import run as runs
from specdec.cli.variants import ready
from specdec.measure.evaluation import Evaluation, lines
from specdec.measure.prediction_files import PredictionsFolder, refuse_url


def command(args: argparse.Namespace) -> None:
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
