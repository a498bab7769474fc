"""`specdec verify`: the exactness certificate of a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from specdec.certificate.certifying import LIMIT, certify
from specdec.cli import beams, output
from specdec.cli import run as runs
from specdec.cli.variants import announce, say, variant
from specdec.common.records import RecordsError


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "verify",
        help="certify that a run is exact",
        description="Certifies that a run decodes what its target alone would: eleven checks, on "
        "this device, with the gin files of `specdec decode`; with --num_beams five of the beams.",
        epilog=f"Takes minutes. Without a limit, in gin or by --limit, the first {LIMIT} examples "
        "are decoded: a certificate needs no whole split. A run that was stopped goes on: until "
        "the end FILE.checks.jsonl keeps the checks that passed. Exit code 1 if a check fails, or "
        "if there are too few texts for what it is there to show.",
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--output_file",
        default="certificate.json",
        metavar="FILE",
        help="write every figure to FILE, as JSON (default: %(default)s)",
    )
    beams.add_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_file")
    return parser


def _command(args: argparse.Namespace) -> int:
    output.check(args, holding="checks")
    passed = Path(f"{args.output_file}.checks.jsonl")
    files = passed, Path(f"{passed}.gin")
    try:
        certificate = certify(variant(args, unmarked=True, drafts=True), say, announce, passed)
        certificate.write(Path(args.output_file))
    except RecordsError:  # they are of another run, which may go on
        raise
    except Exception:  # Ctrl-C is no Exception, and keeps the passed checks for the next run
        _remove(files)
        raise
    _remove(files)
    print(f"{certificate.verdict}; figures in {args.output_file}")
    return 0 if certificate.certified else 1


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
