"""Times other engines on a run's weights, by turns with specdec in one process.

  python scripts/peers/compare.py --gin_file=demo.gin --output_file=FILE
  python scripts/peers/compare.py --table FILE [FILE ...]

README.md beside this file says what is compared, and how.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code, 2 for the user's mistakes."""
    argv = sys.argv[1:] if argv is None else argv
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument(
        "--threads",
        type=int,
        default=2,
        metavar="N",
        help="of each engine, on as many cores (default: %(default)s)",
    )
    threads = flags.parse_known_args(argv)[0].threads
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= threads <= len(cores):
        print(
            f"compare: --threads is {threads}; give a number from 1 to {len(cores)}, the cores",
            file=sys.stderr,
        )
        return 2
    # XLA takes all cores it sees, and threads that an import starts keep to those of this one.
    os.sched_setaffinity(0, cores[:threads])
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the others need room too
    import turns

    return turns.main(argv, flags)


if __name__ == "__main__":
    sys.exit(main())
