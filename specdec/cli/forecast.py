"""`specdec forecast`: the speed-up at every draft length, from recorded texts."""

from __future__ import annotations

import argparse
import itertools
import operator
import re

from specdec.cli import output, settings
from specdec.cli import run as runs
from specdec.cli.variants import add_cost_flags, add_variant_flag, costs_of, rows_of, variants
from specdec.common.values import UsageError
from specdec.predict import predicted_speedup
from specdec.predict.draft_lengths import DraftLengths

GAMMAS = "1-10"


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "forecast",
        help="the speed-up at every draft length, from texts that were written once",
        description="Replays the texts that `specdec acceptance --output_file` has written, with "
        "the run's drafter at each draft length, which counts target calls; with the seconds of "
        "the parts that is a speed-up, next to that of the papers' formula and that of an oracle "
        "whose drafts stop just before their first refusal. At temperature 0 the calls are those "
        "of the engine. Takes the gin files of `specdec decode`.",
    )
    runs.add_flags(
        parser,
        batch_size="texts that are decoded together, in the order of the passes (default: 1)",
    )
    parser.add_argument(
        "--passes",
        required=True,
        metavar="FILE",
        help="what `specdec acceptance --output_file=FILE` wrote of the same texts",
    )
    parser.add_argument(
        "--gammas",
        metavar="N,...",
        help=f"draft lengths, as 3, 1,2,4 or 1-10 (default: {GAMMAS}, as far as outputs have room)",
    )
    add_cost_flags(parser, "the lines of `specdec bench`, or the JSON of `specdec compile`")
    add_variant_flag(
        parser,
        "drafters, as of `specdec bench`; one that draws needs passes of its own",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per draft length, and the settings in force to FILE.gin",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    gammas = _gammas(args.gammas or GAMMAS)
    read = [file for file in (args.passes, args.costs) if file]
    output.check(args, inputs=[*read, f"{args.passes}.gin"])
    ready = DraftLengths.of(
        variants(args, lines="forecast"),
        args.passes,
        gammas,
        asked=args.gammas is not None,
        costs=costs_of(args),
        rows=rows_of(args),
    )
    # All that can be wrong has been looked at; from here on it takes long.
    lines = settings.json_lines(args.output_file, ready.variants[0].settings)
    for variant, group in itertools.groupby(ready.predictions(), key=operator.itemgetter(0)):
        predicted = []
        for _, prediction in group:
            predicted.append(prediction)
            if lines:
                lines.append(prediction.record())
        if variant.name:
            print(f"\n{variant.name}")
        plan = variant.run.plan
        name = type(plan.drafter).__name__ if plan.drafts else plan.target
        print(f"{name}, {plan.sampling}, {predicted[0].costs}")
        print(*predicted_speedup.lines(predicted), sep="\n", flush=True)


def _gammas(text: str) -> list[int]:
    """Returns draft lengths, ascending."""
    lengths: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if ends is None or int(ends[1]) < 1 or int(ends[2] or ends[1]) < int(ends[1]):
            raise UsageError(
                f"--gammas is {text!r}; give draft lengths from 1 on, as 1,2,4 or 1-10"
            )
        lengths |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(lengths)
