"""`specdec verify`: the exactness certificate of a run."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np

from specdec import certificate, records
from specdec.certificate import Check, Subject
from specdec.cli import output
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.cli.texts import ways_of
from specdec.common.environment import environment
from specdec.engine import parameter_counts

LIMIT = 64


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "verify",
        help="certify that a run is exact",
        description="Certifies that a run decodes what its target alone would: ten checks, on "
        "this device, with the gin files of `specdec decode`.",
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
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> int:
    output.check(args, holding="checks")
    run, engine = runs.opened(args, unmarked=True, change=_whole_outputs)
    runs.require_drafter(run)
    try:
        certificate.refuse(run.plan)
    except ValueError as error:
        raise UsageError(str(error)) from error
    batches = run.batches()
    ways_of(run, engine)  # what cannot work together shows here
    in_force = runs.in_force(run)  # of the files as they are now
    # All that can be wrong has been looked at; from here on it takes long.
    inputs = [batch.inputs[: len(batch.input_texts)] for batch in batches]
    if not inputs:
        raise UsageError(f"split {run.data.split!r} has no examples; choose another one")
    subject = Subject(
        run.plan,
        engine.params,
        np.concatenate(inputs),
        seed=run.data.seed,
        batch_size=run.data.batch_size,
        mesh=run.placement.mesh,
    )
    verifier, checks = certificate.stand_in(run.plan), []
    if verifier is not None:
        print(f"NOT EXACT: {run.plan.verifier}; the checks of exactness are with {verifier}")
    for check in certificate.certify(subject, _announce, run.lossy):
        print(check, flush=True)
        checks.append(check)
    record = _record(run, subject, checks) | {"settings": in_force}
    _write(args.output_file, record)
    print(f"{_verdict(checks, lossy=verifier is not None)}; figures in {args.output_file}")
    return 0 if record["passed"] else 1


def _whole_outputs(run: DecodeRun) -> DecodeRun:
    """The run over a part of its split, in one shape."""
    if run.data.decoder_prefix:
        raise UsageError("a certificate is about whole outputs; leave decoder_prefix empty")
    limit = LIMIT if run.data.limit is None else run.data.limit
    data = dataclasses.replace(run.data, limit=limit, buckets=())
    return dataclasses.replace(run, data=data)


def _announce(name: str) -> None:
    print(f"specdec: checking {name} ...", file=sys.stderr, flush=True)


def _verdict(checks: list[Check], lossy: bool) -> str:
    failed = [check.name for check in checks if not check.passed]
    if failed:
        return f"NOT CERTIFIED: {', '.join(failed)} failed"
    if lossy:
        return "LOSSY: the verifier diverges as measured, and all else is exact"
    return f"CERTIFIED: all {len(checks)} checks passed"


def _record(run: DecodeRun, subject: Subject, checks: list[Check]) -> dict[str, Any]:
    return {
        "passed": all(check.passed for check in checks),
        "exact": run.plan.exact,
        "checks": [check.record() for check in checks],
        "texts": len(subject.inputs),
        "split": run.data.split,
        "lengths": run.lengths,
        "batch_size": run.data.batch_size,
        "seed": run.data.seed,
        "dtype": run.plan.models()["target"].dtype,
        **{f"{role}_parameters": n for role, n in parameter_counts(run.plan.models()).items()},
        "environment": environment(),
    }


def _write(path: str, record: dict[str, Any]) -> None:
    records.write(Path(path), records.as_json(record, indent=2) + "\n")
