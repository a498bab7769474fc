"""The `specdec` command, also `python -m specdec`."""

import sys
import time

from specdec.common import progress


def main() -> int:
    """Runs the command line; a terminal hears of it before JAX is imported, which takes seconds."""
    begun = time.perf_counter() - time.process_time()
    with progress.shown_on(sys.stderr, begun):
        with progress.stage("starting", "starting"):
            from specdec import cli
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
