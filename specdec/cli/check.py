"""`specdec check`: tells whether checkpoints are damaged."""

from __future__ import annotations

import argparse

from specdec.common.terminal import visible


def command(args: argparse.Namespace) -> int:
    sound = [_check(path, args.record) for path in args.directories]
    damaged = [path for path, fine in zip(args.directories, sound, strict=True) if not fine]
    print(visible(f"DAMAGED: {', '.join(damaged)}") if damaged else "SOUND")
    return 1 if damaged else 0


def _check(path: str, record: bool) -> bool:
    """Prints the findings about one checkpoint, and returns whether it is sound."""
    from specdec.checkpoints import contents  # and TensorStore

    sound = True
    for finding in contents.examine(path):
        verdict = "PASS" if finding.sound else "FAIL"
        print(visible(f"{verdict} {finding.what:<10} {finding.note}"), flush=True)
        sound &= finding.sound
    if sound and record:
        print(f"recorded the checksums of {contents.record_checksums(path)} arrays")
    return sound
