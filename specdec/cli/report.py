"""`specdec report`: measured runs next to published ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specdec.cli import machine, output
from specdec.common import records
from specdec.common.values import UsageError
from specdec.instrument.report import headline, publishing, summaries, tables


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "report",
        help="measured runs next to published ones",
        description="Lays what `specdec bench` and `specdec acceptance` measured next to the rows "
        "of Leviathan et al., as Markdown. A run goes by the name of its file up to the first dot: "
        "ende_small_t0.jsonl.summary.json is that of leviathan/ende_small_t0.gin, and files of one "
        "name make one row.",
    )
    parser.add_argument(
        "summaries",
        nargs="*",
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
        "--headline",
        action="store_true",
        help="instead one table of what `specdec bench` measured and predicted",
    )
    parser.add_argument(
        "--output_file", metavar="FILE", help="write there (default: standard output)"
    )
    parser.add_argument(
        "--figures_dir",
        metavar="DIR",
        help="also draw what `specdec bench` measured, as PNG files in this folder, from the "
        "summaries and the JSON lines next to them; --output_file links them",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="instead write one page with tables, figures and --generations, which needs no other "
        "file and no network",
    )
    parser.add_argument(
        "--generations",
        action="append",
        default=[],
        metavar="FILE",
        help="show these texts in the page, call by call: the --output_file of `specdec decode "
        "--explain`, or the JSON lines of `specdec bench`; may repeat",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    _refuse_what_does_not_go_together(args)
    if args.html:
        records.hold(Path(args.html), "--html")
        publishing.write_page(args.html, args.summaries, args.paper, args.generations)
        print(f"wrote {args.html}", file=sys.stderr)
        return
    output.check(args, inputs=args.summaries)
    machine.refuse_unwritable_folder("--figures_dir", args.figures_dir)
    try:
        measured = summaries.read(args.summaries, args.paper)
        text = headline.headline(measured) if args.headline else tables.markdown(measured)
        drawn = publishing.draw(measured, args.figures_dir) if args.figures_dir else []
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.output_file:
        text += "".join(f"\n{publishing.link(one, args.output_file)}\n" for one in drawn)
        records.write(Path(args.output_file), text)
    else:
        print(text, end="")
    for figure in drawn:
        print(f"wrote {figure}", file=sys.stderr)


def _refuse_what_does_not_go_together(args: argparse.Namespace) -> None:
    if args.generations and not args.html:
        raise UsageError("--generations are shown in a page; give --html=FILE as well")
    if args.html and (args.output_file or args.figures_dir or args.headline):
        raise UsageError(
            "--html has tables and figures in it; leave --output_file, --figures_dir and "
            "--headline out"
        )
    if not args.summaries and not args.generations:
        raise UsageError("there is nothing to report on; give a FILE.summary.json")
