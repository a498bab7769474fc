"""`specdec report`: prints measured runs next to published ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from specdec.cli import machine, output
from specdec.common import records
from specdec.common.values import UsageError, one_line
from specdec.report import run_tables
from specdec.report.summaries import ReportedRun, read


def command(args: argparse.Namespace) -> None:
    _refuse_what_does_not_go_together(args)
    if args.html:
        records.hold(Path(args.html), "--html")
        _write_page(args.html, args.summaries, args.paper, args.generations)
        print(f"wrote {args.html}", file=sys.stderr)
        return
    output.check(args, inputs=args.summaries)
    machine.refuse_unwritable_folder("--figures_dir", args.figures_dir)
    with one_line():
        measured = read(args.summaries, args.paper)
        text = run_tables.headline(measured) if args.headline else run_tables.markdown(measured)
        drawn = _draw(measured, args.figures_dir) if args.figures_dir else []
    if args.output_file:
        text += "".join(f"\n{_link(figure, args.output_file)}\n" for figure in drawn)
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


def _write_page(
    path: str, summaries: Sequence[str], paper: str | None, generations: Sequence[str]
) -> None:
    """Writes one self-contained page with tables, figures and generations."""
    try:
        from specdec.report import generations as texts
        from specdec.report import html

        with one_line():
            page = html.page(read(summaries, paper), texts.read(generations))
    except ImportError as error:
        missing = "--html needs jinja2 and matplotlib; pip install jinja2 matplotlib"
        raise UsageError(missing) from error
    try:
        records.write(Path(path), page)
    except OSError as error:
        raise UsageError(
            f"--html {path} cannot be written: {error.strerror}; give another file"
        ) from error


def _draw(measured: Sequence[ReportedRun], folder: str) -> list[Path]:
    """Draws the figures of runs into a folder, and returns their paths."""
    try:
        from specdec.report import figures
    except ImportError as error:
        missing = "--figures_dir needs matplotlib; pip install matplotlib"
        raise UsageError(missing) from error
    try:
        return figures.draw(measured, folder)
    except OSError as error:
        raise UsageError(
            f"--figures_dir {folder} cannot be written: {error.strerror}; give another folder"
        ) from error


def _link(figure: Path, page: str) -> str:
    """Returns a Markdown image link to a figure, relative to the page."""
    path = Path(os.path.relpath(figure, Path(page).parent)).as_posix()
    return f"![{figure.stem.replace('_', ' ')}]({quote(path)})"
