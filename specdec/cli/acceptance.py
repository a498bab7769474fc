"""`specdec acceptance`: the papers' alpha of a run's pair."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdec.cli import machine, output
from specdec.cli import run as runs
from specdec.cli.variants import variant
from specdec.common import hosts, records
from specdec.common.records import Lines
from specdec.common.values import PositiveInt, UsageError, check
from specdec.measure import alphas, recorded_texts


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "acceptance",
        help="measure alpha, teacher-forced",
        description="The target writes texts alone, with the run's sampling. Alpha is the mean of "
        "sum min(p, q) over their tokens: what exact speculative sampling accepts, whatever "
        "VERIFIER is. For a lenience l it is that of sum min(p/l, q). Where a drafter proposes "
        "nothing, nothing is accepted. Takes the gin files of `specdec decode`. A measurement "
        "without tables that was interrupted goes on when the command is given again.",
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--tokens",
        type=int,
        default=10_000,
        metavar="N",
        help="to write, in whole texts (default: %(default)s)",
    )
    parser.add_argument(
        "--tables",
        action="store_true",
        help="also for a unigram and a bigram table of the target's own texts, each counted from "
        "one half of them and measured on the other",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per text, which `specdec forecast` reads, the figures "
        "to FILE.summary.json, and the settings in force to FILE.gin",
    )
    machine.add_distributed_flag(
        parser,
        "measure over the devices of all hosts that run this command, which NUM_PARTITIONS makes "
        "one mesh; the first host prints and writes",
    )
    parser.set_defaults(command=_command, resumes_from="output_file")
    return parser


def _command(args: argparse.Namespace) -> None:
    check("--tokens", args.tokens, PositiveInt, UsageError)
    output.check(args)
    measured = variant(args, lines="acceptance")
    machine.refuse_no_mesh(args, measured.run.placement.mesh)
    recorded_texts.refuse_other_than_plain(measured.run)
    batches = recorded_texts.batches_of(measured.run, "measure")
    settings = recorded_texts.with_record(measured)
    lines = None
    if (path := args.output_file) is not None:
        lines = hosts.from_first(lambda: Lines.of(Path(path), settings))
    # All that can be wrong has been looked at; from here on it takes long.
    texts = recorded_texts.record(measured, batches, args.tokens, lines, args.tables)
    summary = alphas.summarize(texts)
    if not hosts.is_first():
        return
    print(*alphas.lines(summary), sep="\n")
    if summary.tokens < args.tokens:
        print(
            f"acceptance: the run's texts end after {summary.tokens} of {args.tokens} tokens; a "
            "higher --limit or another split has more",
            file=sys.stderr,
        )
    if lines:
        report = recorded_texts.report(measured.run, summary, args.tokens)
        text = records.as_json(report, indent=2)
        records.write(Path(f"{lines.path}.summary.json"), f"{text}\n")
