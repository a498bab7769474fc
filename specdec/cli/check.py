"""`specdec check`: whether checkpoints are sound."""

from __future__ import annotations

import argparse

from specdec.common.terminal import visible


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "check",
        help="look for damage in checkpoints",
        description="Reads checkpoints of any format whole: whether the model is described and the "
        "arrays fit it, whether the vocabulary is the one that was saved, whether all data can be "
        "read and every number is finite, and, in our own format, whether each array has the "
        "checksum that it was saved with.",
        epilog="Exit code 1 if something is damaged.",
    )
    parser.add_argument("directories", nargs="+", metavar="DIR", help="a checkpoint's directory")
    parser.add_argument(
        "--record",
        action="store_true",
        help="put the checksums of what a sound checkpoint of our own format holds now into its "
        "record; those saved by an earlier version have none",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> int:
    sound = [_check(path, args.record) for path in args.directories]
    damaged = [path for path, fine in zip(args.directories, sound, strict=True) if not fine]
    print(visible(f"DAMAGED: {', '.join(damaged)}") if damaged else "SOUND")
    return 1 if damaged else 0


def _check(path: str, record: bool) -> bool:
    """Prints each finding, and returns whether all are sound."""
    from specdec.checkpoints import contents  # and TensorStore

    sound = True
    for finding in contents.examine(path):
        verdict = "PASS" if finding.sound else "FAIL"
        print(visible(f"{verdict} {finding.what:<10} {finding.note}"), flush=True)
        sound &= finding.sound
    if sound and record:
        print(f"recorded the checksums of {contents.record_checksums(path)} arrays")
    return sound
