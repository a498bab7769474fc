"""`specdec bench`: the speed of speculation on a run's texts, one text at a time."""

from __future__ import annotations

import argparse

from specdec.cli import beams, machine, output
from specdec.cli import run as runs
from specdec.cli.variants import add_variant_flag, path_of, variants
from specdec.common.values import PositiveInt, UsageError, check
from specdec.measure.benchmarking import (
    LIMIT,
    TEXTS_ELSEWHERE,
    Benchmark,
    one_text_at_a_time,
)


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="measure the speed-up",
        description="Times a target alone and with a drafter, alternating in one process, one text "
        "at a time whatever BATCH_SIZE and BUCKETS say, and the models' parts on their own. Takes "
        f"the gin files of `specdec decode`. Measures {LIMIT} texts unless there is a limit. A "
        "measurement that was interrupted goes on when the command is given again.",
    )
    runs.add_flags(
        parser,
        batch_size="has no effect, because one text is timed at a time; `specdec tune` has "
        "predictions of larger batches",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="of each text (default: %(default)s)"
    )
    add_variant_flag(
        parser,
        "drafters, draft lengths or verifiers, which take turns text by text, as in "
        "--variant=GAMMA=3 --variant=verifiers/coupled.gin; each has an output file of its own, "
        "FILE with the variant before its suffix",
    )
    parser.add_argument(
        "--synthetic_alpha",
        type=float,
        metavar="A",
        help="NOT EXACT: accept each draft token with this probability, whatever the models think, "
        "and let no text end before its longest length; for the speed of a pair one has no "
        "weights of",
    )
    parser.add_argument(
        "--forecast_split",
        metavar="NAME",
        help=f"also decode {TEXTS_ELSEWHERE} texts of this split, or as many as are timed if those "
        "are more, untimed, and say what speed-up their acceptance and the parts' costs predict",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per generation or timing of a part, the figures to "
        "FILE.summary.json, and the settings in force to FILE.gin",
    )
    parser.add_argument(
        "--profile_dir",
        metavar="DIR",
        help="also write an xprof trace of one text's generations, after the measurement",
    )
    beams.add_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_file")
    return parser


def _command(args: argparse.Namespace) -> None:
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
