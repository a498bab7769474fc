"""`specdec verify`: the exactness certificate of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec.cli import beams, output
from specdec.cli import run as runs
from specdec.cli.variants import announce, say, variant
from specdec.instrument.certifying import LIMIT, certify


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "verify",
        help="certify that a run is exact",
        description="Certifies that a run decodes what its target alone would: ten checks, on "
        "this device, with the gin files of `specdec decode`; with --num_beams five of the beams.",
        epilog=f"Takes minutes. Without a limit, in gin or by --limit, the first {LIMIT} examples "
        "are decoded: a certificate needs no whole split. Exit code 1 if a check fails.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--output_file",
        default="certificate.json",
        metavar="FILE",
        help="write every figure to FILE, as JSON (default: %(default)s)",
    )
    beams.add_flags(parser)
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> int:
    output.check(args, holding="checks")
    how = {"overrides": beams.flags_of(args), "beams": True, "unmarked": True, "drafts": True}
    found = certify(variant(args, **how), say, announce)
    found.write(Path(args.output_file))
    print(f"{found.verdict}; figures in {args.output_file}")
    return 0 if found.passed else 1
