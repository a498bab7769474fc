"""Times beam search by specdec and by T5X on the same weights, text by text, in one process.

  python scripts/peers/beams_timed.py --t5x CHECKOUT [--pair captions] [--grown DIR] [--texts 20]

Plain beams, one text at a time, from ids on the host to ids and scores on the host. All searches
of a text come one after another, each first as often as the others, so other work of the machine
falls on all alike. Each turn of a text is a line in docs/results/DEVICE/beams/; the same command
goes on after an interruption. --grown times the pair at other sizes: DIR has a target of
`specdec grow`. README.md has more.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

import beam_peers
import harness
import numpy as np
from beam_peers import LABELS, plain

from specdec.common.values import UsageError
from specdec.decoding.beam_rules import T5XBeams

PEERS = ("t5x_search", "t5x")
COLUMNS = (
    *("pair", "target", "search", "seconds a text"),
    *("time over specdec's (95 %)", "processor time over specdec's (95 %)", "load"),
)


def main() -> int:
    parser = harness.parser(__doc__, texts=20)
    add = parser.add_argument
    add("--pair", choices=harness.PAIRS, default="captions", metavar="PAIR")
    add("--grown", metavar="DIR", help="a folder with a grown target")
    add("--beams", type=int, default=4, metavar="W")
    add("--repeats", type=int, default=3, metavar="N", help="of each text")
    add("--peers", nargs="+", choices=PEERS, default=PEERS, metavar="PEER")
    add("--t5x", metavar="DIR", help="a checkout of T5X")
    args = parser.parse_args()
    lines = harness.Results.of(args, "beams/timed", "pair", "target", "beams", "text", "repeat")
    try:
        about = harness.about() | {"versions_of_peers": beam_peers.versions(["t5x"], args.t5x)}
    except UsageError as error:
        print(f"beams_timed: {error}", file=sys.stderr)
        return 2
    for line in measured(args, lines):
        lines.put({**line, **about})
    print(*table(list(lines)), sep="\n")
    return 0


def measured(args: argparse.Namespace, lines: harness.Results) -> Iterator[dict[str, Any]]:
    """Yields a line for each turn of a text that is not known."""
    flags = harness.pair_flags(args.pair)
    flags += [harness.checkpoint_flag(f"{args.grown}/target", "")] if args.grown else []
    run = harness.run_of([*flags, "--gin.DRAFTER=None"], args.texts, batch_size=1)
    search = plain(run, args.beams, T5XBeams())
    about = {"pair": args.pair, "target": harness.size_of(run)}
    about["beams"] = args.beams
    ready = searches(search, run, args)
    for line, found in harness.turns(ready, list(run.batches()), args.repeats, about, lines):
        ours = found["specdec"].tokens
        line["identical"] = [x for x in found if np.array_equal(found[x].tokens, ours)]
        line["tokens"] = int(np.count_nonzero(ours[0, 0]))
        yield line


def searches(search: Any, run: harness.Run, args: argparse.Namespace) -> dict[str, Any]:
    """Returns functions of a batch, by name."""
    made: dict[str, Any] = {"specdec": functools.partial(beam_peers.ours, search)}
    for name in args.peers:
        peer = beam_peers.peer(name, search, run, args.t5x, Path())
        made[name] = lambda batch, peer=peer: peer(batch.inputs)
    return made


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a row for each search of each target: sums over texts of medians over repeats."""
    yield harness.head(*COLUMNS)
    for pair, target in dict.fromkeys((one["pair"], one["target"]) for one in lines):
        some = [one for one in lines if (one["pair"], one["target"]) == (pair, target)]
        for name, seconds, cells in harness.compared(some, "specdec"):
            label = LABELS.get(name, name)
            yield harness.row(pair, target, label, f"{seconds.mean():.3f}", *cells)


if __name__ == "__main__":
    sys.exit(main())
