"""`specdec verify`: certifies that a run is exact."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from specdec.certificate.certifying import certify
from specdec.cli import output
from specdec.cli.variants import announce, say, variant
from specdec.common.records import RecordsError


def command(args: argparse.Namespace) -> int:
    output.check(args, holding="checks")
    passed = Path(f"{args.output_file}.checks.jsonl")
    files = passed, Path(f"{passed}.gin")
    try:
        certificate = certify(variant(args, unmarked=True, drafts=True), say, announce, passed)
        certificate.write(Path(args.output_file))
    except RecordsError:  # the files belong to another run, which may resume
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
