"""Compares the beams of specdec with those of T5X and of transformers, on the same weights.

  python scripts/peers/beams_identical.py --t5x CHECKOUT [--beams 4 2 8] [--texts 1000]

All w beams of a text, their order and their scores are compared. Where a text differs, our search
is repeated with weights that are moved by a millionth. A difference is a near-tie where one of
those searches finds what the peer has found. Each batch is a line in docs/results/DEVICE/beams/;
the same command goes on after an interruption. Needs scripts/peers/requirements.txt, without
CTranslate2. README.md has more.
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
import jax
import numpy as np
from beam_peers import LABELS, RULES, Found, plain

from specdec.common.environment import load_average
from specdec.common.values import UsageError
from specdec.engine.beam_engine import BeamEngine

ROWS = 25  # texts of a batch
MOVED, SEEDS = 1e-6, 20  # relative changes of the weights; float32 rounds at 6e-8
EMPTY = -1e6  # below it a score is that of a place without a text
COLUMNS = "beams", "peer", "identical", "best identical", "score", "near-ties", "other"


def main() -> int:
    parser = harness.parser(__doc__, texts=1000)
    add = parser.add_argument
    add("--pair", choices=harness.PAIRS, default="captions", metavar="PAIR")
    add("--beams", nargs="+", type=int, default=(4, 2, 8), metavar="W")
    add("--peers", nargs="+", choices=LABELS, default=list(LABELS), metavar="PEER")
    add("--t5x", metavar="DIR", help="a checkout of T5X")
    add("--work_dir", type=Path, default=Path("/tmp/specdec-peers"), help="for exported weights")
    args = parser.parse_args()
    lines = harness.Results.of(args, "beams/identical", "pair", "beams", "peer", "first")
    try:
        versions = beam_peers.versions(args.peers, args.t5x)
    except UsageError as error:
        print(f"beams_identical: {error}", file=sys.stderr)
        return 2
    about = {**harness.about(), "torch_threads": 1, "versions_of_peers": versions}
    for line in measured(args, lines.known()):
        lines.put({**line, **about})
    print(*table(list(lines)), sep="\n")
    return 0


def measured(args: argparse.Namespace, known: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Yields a line for each batch, peer and number of beams that is not known."""
    run = harness.run_of(harness.pair_flags(args.pair), args.texts, batch_size=ROWS)
    batches = list(run.batches())
    for beams in args.beams:
        searches = {rule: plain(run, beams, rule) for rule in set(RULES.values())}
        for name in args.peers:
            search, peer = searches[RULES[name]], None
            for batch in batches:
                line: dict[str, Any] = {"pair": args.pair, "beams": beams, "peer": name}
                line["first"] = int(batch.index[0])
                if tuple(map(str, line.values())) in known:
                    continue
                peer = peer or beam_peers.peer(name, search, run, args.t5x, args.work_dir)
                theirs = peer(batch.inputs)
                compared = compare(beam_peers.ours(search, batch), theirs)
                if compared["differences"]:
                    audit(search, batch, theirs, compared["differences"])
                yield line | compared | {"load": load_average()}


def compare(ours: Found, theirs: Found) -> dict[str, Any]:
    """Returns how many texts have identical beams, and what the others have."""
    same = np.all(ours.tokens == theirs.tokens, axis=2)
    identical = np.all(same, axis=1)
    gaps = np.where(ours.scores > EMPTY, np.abs(ours.scores - theirs.scores), 0.0)
    differences = []
    for row in np.flatnonzero(~identical):
        place = int(np.argmin(same[row]))
        differences.append(
            {
                "row": int(row),
                "place": place,  # of the first beam that differs, the best is 0
                "scores": [float(x.scores[row, place]) for x in (ours, theirs)],
                "tokens": [x.tokens[row, place].tolist() for x in (ours, theirs)],
                "same_set": set_of(ours.tokens[row]) == set_of(theirs.tokens[row]),
            }
        )
    return {
        "texts": len(identical),
        "identical": int(identical.sum()),
        "best_identical": int(same[:, 0].sum()),
        "score_difference": float(gaps[identical].max(initial=0.0)),
        "differences": differences,
    }


def set_of(beams: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in beams}


def audit(
    search: BeamEngine, batch: Any, theirs: Found, differences: Sequence[dict[str, Any]]
) -> None:
    """Adds to each difference in how many searches with moved weights it is gone."""
    for one in differences:
        one["as_peer"] = 0
    for seed in range(SEEDS):
        weights = moved(search.params["target"], seed)
        found = beam_peers.ours(search, batch, weights)
        for one in differences:
            row = one["row"]
            one["as_peer"] += bool(np.array_equal(found.tokens[row], theirs.tokens[row]))
    for one in differences:
        one |= {"searches": SEEDS, "moved": MOVED}


def moved(weights: Any, seed: int) -> Any:
    """Returns weights each of which is another one by about a millionth of itself."""
    random = np.random.default_rng(seed)

    def move(leaf: Any) -> Any:
        return leaf * (1 + MOVED * random.standard_normal(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(move, weights)


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the rows of a table of all lines of a number of beams and a peer."""
    yield harness.head(*COLUMNS)
    for beams, peer in sorted({(one["beams"], one["peer"]) for one in lines}):
        some = [one for one in lines if (one["beams"], one["peer"]) == (beams, peer)]
        total = functools.partial(summed, some)
        differences = [x for one in some for x in one["differences"]]
        ties = sum(x["as_peer"] > 0 for x in differences)
        worst = max(one["score_difference"] for one in some)
        counts = (f"{total(name):,} of {total('texts'):,}" for name in IDENTICAL)
        cells = *counts, f"{worst:.1e}", ties, len(differences) - ties
        yield harness.row(beams, LABELS[peer], *cells)


IDENTICAL = "identical", "best_identical"


def summed(lines: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(one[name] for one in lines)


if __name__ == "__main__":
    sys.exit(main())
