"""`specdec report`: measured runs beside published ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec import report
from specdec.cli import run as runs
from specdec.cli.settings import UsageError


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "report",
        help="measured runs beside published ones",
        description="Lays what `specdec bench` and `specdec acceptance` measured beside the rows "
        "of Leviathan et al., as Markdown. A run goes by the name of its file up to the first dot: "
        "ende_small_t0.jsonl.summary.json is that of leviathan/ende_small_t0.gin, and files of one "
        "name make one row.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "summaries",
        nargs="+",
        metavar="FILE",
        help="a FILE.summary.json of `specdec bench` or `specdec acceptance`",
    )
    parser.add_argument(
        "--paper",
        metavar="FILE",
        help="the gin file of the published row for all of them, whatever they are called, such as "
        "leviathan/ende_small_t0.gin",
    )
    parser.add_argument(
        "--output_file", metavar="FILE", help="write there (default: standard output)"
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    runs.refuse_unwritable(args.output_file)
    try:
        text = report.markdown(report.read(args.summaries, args.paper))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.output_file:
        Path(args.output_file).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
