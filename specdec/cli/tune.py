"""`specdec tune`: the drafter, the draft lengths and the stopping rule that suit a pair best."""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec.cli import machine
from specdec.cli import run as runs
from specdec.cli.variants import add_cost_flags, add_variant_flag, costs_of, rows_of, variants
from specdec.common.values import PositiveInt, UsageError, check
from specdec.predict import tuning
from specdec.predict.search import TOKENS, Search


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "tune",
        help="find out how long to draft, and with what",
        description="Writes texts of the target and what the drafter thinks of them, measures the "
        "parts of a generation, and replays the texts with every draft length and every schedule. "
        "What is fastest on one half of the texts is recommended, with the speed-up that is "
        "predicted on the other half. Tune on texts that nothing is reported of: --gin.SPLIT. A "
        "run that was stopped goes on. Takes the gin files of `specdec decode`.",
        epilog="Give OUTPUT_DIR/tuned.gin to the other commands as the last --gin_file.",
    )
    runs.add_flags(parser, batch_size="texts that are decoded together (default: 1)")
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="where the recommendation (tuned.gin), a figure (surface.svg), what was tried "
        "(tried.jsonl), the texts (passes.jsonl) and the costs (costs.json) go",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=TOKENS,
        metavar="N",
        help="to write, in whole texts (default: %(default)s)",
    )
    add_cost_flags(parser, "of `specdec bench`, `specdec compile` or another `specdec tune`")
    parser.add_argument(
        "--longest",
        type=int,
        metavar="N",
        help=f"the longest draft to try (default: {tuning.LONGEST}, as far as outputs have room)",
    )
    add_variant_flag(
        parser,
        "drafters, as of `specdec bench`",
    )
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> None:
    for name in ("tokens", "longest"):
        check(f"--{name}", getattr(args, name), PositiveInt | None, UsageError)
    costs = costs_of(args)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    search = Search.of(
        variants(args, lines="acceptance"),
        Path(args.output_dir),
        tokens=args.tokens,
        longest=args.longest,
        rows=rows_of(args),
        costs=costs,
    )
    best = search.run()
    print(*best.lines(), sep="\n")
    text = best.write(search.folder, args.gin_file or [args.target])
    print(f"\n{search.folder / 'tuned.gin'}:\n{text}", end="")
