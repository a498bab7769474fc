"""The flags of scripts with random weights, and the cores of a process.

It imports nothing that starts threads. XLA takes all cores that it sees, and threads that an import
starts keep to those of the one that imports: so cores are chosen first.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

THREADS = 2  # of each engine


def keep_to(threads: int) -> None:
    """Keeps the process to this many cores, the first that it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def parsed(
    doc: str | None,
    peers: Sequence[str],
    weights: Sequence[str],
    *,
    gamma: int,
    texts: int,
    new: int,
) -> argparse.Namespace:
    """Returns the flags of a script, whose process keeps to `THREADS` cores from now on.

    Args:
      doc: the script's docstring, whose first line is its help.
      peers: the engines that may be chosen.
      weights: the kinds of our weights that may be chosen; the first is the default.
      gamma: the default draft length.
      texts: how many inputs there are by default.
      new: the tokens of an output by default.
    """
    parser = argparse.ArgumentParser(description=str(doc).partition("\n")[0])
    add = parser.add_argument
    add("--output_file", required=True, metavar="FILE")
    add("--weights", default=weights[0], choices=weights, help="of ours")
    add("--peers", nargs="+", default=peers, choices=peers, metavar="NAME")
    add("--gamma", type=int, default=gamma, metavar="N")
    add("--texts", type=int, default=texts, metavar="N", help="inputs")
    add("--new", type=int, default=new, metavar="N", help="tokens of an output")
    add("--repeats", type=int, default=2, metavar="N")
    add("--pause", type=float, default=0.3, metavar="S")
    args = parser.parse_args()
    keep_to(THREADS)
    return args
