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

import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code, 2 for the user's mistakes."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--threads",
        type=int,
        default=flags.THREADS,
        metavar="N",
        help="of each engine, on as many cores (default: %(default)s)",
    )
    threads = parser.parse_known_args(argv)[0].threads
    cores = len(os.sched_getaffinity(0))
    if not 1 <= threads <= cores:
        print(
            f"compare: --threads is {threads}; give a number from 1 to {cores}, the cores",
            file=sys.stderr,
        )
        return 2
    flags.keep_to(threads)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the others need room too
    import turns

    return turns.main(argv, parser)


if __name__ == "__main__":
    sys.exit(main())
