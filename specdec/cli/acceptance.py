"""`specdec acceptance`: measures the acceptance rate alpha of a run's drafter."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdec.cli import machine, output
from specdec.cli.variants import variant
from specdec.common import hosts, records
from specdec.common.records import Lines
from specdec.common.values import PositiveInt, UsageError, check
from specdec.measure import alphas, recorded_texts


def command(args: argparse.Namespace) -> None:
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
    # All checks are done; the long work begins.
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
