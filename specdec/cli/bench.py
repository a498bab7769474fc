"""`specdec bench`: times speculative decoding of a run's texts, one text at a time."""

from __future__ import annotations

import argparse

from specdec.cli import machine, output
from specdec.cli.variants import path_of, variants
from specdec.common.values import PositiveInt, UsageError, check
from specdec.measure.benchmarking import (
    Benchmark,
    one_text_at_a_time,
)


def command(args: argparse.Namespace) -> None:
    check("--repeats", args.repeats, PositiveInt, UsageError)
    output.check(args)
    machine.refuse_unwritable_folder("--profile_dir", args.profile_dir)
    file = args.output_file
    timed = variants(args, file, lines="bench", change=one_text_at_a_time())
    ready = Benchmark.of(
        ((variant, path_of(file, variant.name)) for variant in timed),
        synthetic_alpha=args.synthetic_alpha,
        split=args.forecast_split,
    )
    for measured in ready.measure(args.repeats, args.profile_dir):
        if len(ready.timed) > 1:
            print(f"\n{measured.variant.name}")
        print(*measured.lines(), sep="\n")
