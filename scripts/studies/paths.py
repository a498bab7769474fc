"""Measures how many tokens several drafted paths keep, drawn and greedy.

  python scripts/studies/paths.py [--pairs captions ende highlights] [--texts 400]

Each pair's small model drafts 1, 2, 4 and 8 paths of 4 and 8 tokens: independent ones at
temperature 1, verified by `Block`, and a greedy tree. Tokens per call are also compared with those
of one path, text by text. Greedy outputs must be the same for every number of paths. Lines go to
paths/lines.jsonl. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import harness
from harness import Outputs, Results, Run

from specdec.drafters import MultiPath
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.verifiers import Block

PATHS = (1, 2, 4, 8)
COLUMNS = ("texts", "temperature", "gamma", "paths", "tokens per call", "of one path's")


def main() -> None:
    parser = harness.parser(__doc__, texts=400, pairs=("captions", "ende", "highlights"))
    parser.add_argument("--gammas", nargs="+", type=int, default=(4, 8), metavar="N")
    parser.add_argument("--temperatures", nargs="+", type=int, default=(1, 0), metavar="T")
    args = parser.parse_args()
    keys = ("pair", "temperature", "gamma", "paths")
    lines = Results.of(args, "paths/lines", *keys)
    print(harness.head(*COLUMNS), flush=True)
    for pair in args.pairs:
        for line in measured(pair, args):
            lines.put(line)
            figures = (harness.interval(line[x]) for x in ("tokens_per_call", "against"))
            print(harness.row(*(line[x] for x in keys), *figures), flush=True)


def measured(pair: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a line for each temperature, draft length and number of paths."""
    run = harness.run_of(harness.pair_flags(pair), args.texts)
    params, texts = run.engine.read(), len(harness.references(run))
    for temperature in args.temperatures:
        for gamma in args.gammas:
            first: Any = None
            for paths in PATHS:
                found = decoded(run, params, temperature, gamma, paths)
                first = first or found
                if not temperature:
                    assert found.texts == first.texts, f"{pair}: {paths} paths change outputs"
                yield {
                    "pair": pair,
                    "temperature": temperature,
                    "gamma": gamma,
                    "paths": paths,
                    "texts": texts,
                    "tokens_per_call": harness.tokens_per_call(found),
                    "against": harness.calls_over(found, first),
                }


def decoded(run: Run, params: Any, temperature: int, gamma: int, paths: int) -> Outputs:
    """Decodes all texts with drafts of some paths; one path is drafted as text."""
    rule = Sampling() if temperature else Greedy()
    own: Any = run.plan.drafter
    drafter = dataclasses.replace(own, sampling=rule)
    if paths > 1:
        drafter = MultiPath(own.model, rule, own.view, own.role, paths=paths)
    parts = {"drafter": drafter, "verifier": Block(), "schedule": Fixed(gamma), "sampling": rule}
    return harness.outputs(run, dataclasses.replace(run.plan, **parts), params)


if __name__ == "__main__":
    main()
