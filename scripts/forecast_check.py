"""Compares forecasts of tokens per target call with what the engine then measures.

  python scripts/forecast_check.py [--pairs ende highlights captions] [--texts 200] [--schedules]

For each pair and each gamma from 1 to 10: the forecast by replay of stored passes over the loop's
tokens per call, greedy on the same texts (which must be 1), greedy on texts of another split, and
at temperature 1, where both draw; with 95 % intervals over texts. With --schedules instead: of each
schedule the loop's tokens per call and the replay's, greedy on the same texts. Lines go to
forecast/lines.jsonl or schedules/replayed.jsonl. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import harness
import numpy as np
from harness import PAIRS, Results, Run, pair_flags, passes, run_of

from specdec.common import theory
from specdec.common.statistics import bootstrap
from specdec.instrument.acceptance import Accepted
from specdec.instrument.forecast import replay
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Entropy,
    Fixed,
    Guard,
    Heuristic,
    JointConfidence,
)

DRAWN = ("sampling/temperature.gin", "verifiers/speculative_sampling.gin")
GAMMAS = tuple(range(1, 11))
WIDTHS, V = (1, 3, 7, 10), (1.2, 1.25, 1.4, 1.6)
SCHEDULES = (
    Fixed(7),
    Fixed(7, stop_at_end=True),
    Fixed(10, shorter=(0, 1, 3, 7)),
    Heuristic(5, WIDTHS),
    Confidence(0.5, buckets=WIDTHS),
    JointConfidence(0.3, buckets=WIDTHS),
    Entropy(1.0, buckets=WIDTHS),
    CostOptimal(0.1, V, WIDTHS),
    Guard(Fixed(7, stop_at_end=True), 0.1, (1.0, 1.4)),
)
COLUMNS = ("pair", "T", "texts", "gamma", "tokens per call")


def main() -> None:
    parser = harness.parser(__doc__, texts=200, pairs=list(PAIRS))
    parser.add_argument("--temperatures", nargs="+", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--gammas", nargs="+", type=int, default=GAMMAS, metavar="N")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="of the loop at T = 1")
    parser.add_argument("--schedules", action="store_true", help="each schedule, not each gamma")
    args = parser.parse_args()
    if args.schedules:
        by_schedule(args)
        return
    print(harness.head(*COLUMNS, "replay, same texts", "other texts", "formula"), flush=True)
    lines = Results.of(args, "forecast/lines", "pair", "temperature", "gamma")
    for pair in args.pairs:
        for temperature in args.temperatures:
            for line in by_gamma(pair, temperature, args):
                lines.put(line)
                ratios = (
                    harness.interval([line[x], *line[f"{x}_interval"]], ".3f")
                    for x in ("same", "other")
                )
                cells = (line[name] for name in ("pair", "temperature", "texts", "gamma"))
                rates = (f"{line[name]:.3f}" for name in ("tokens_per_call", "formula"))
                print(harness.row(*cells, next(rates), *ratios, *rates), flush=True)


def by_schedule(args: argparse.Namespace) -> None:
    print(harness.head("pair", "texts", "schedule", "tokens per call", "replay"))
    lines = Results.of(args, "schedules/replayed", "pair", "schedule")
    for pair in args.pairs:
        run = run_of(pair_flags(pair), args.texts)
        params = run.engine.read()
        texts = passes(run, params)
        for schedule in SCHEDULES:
            line = {
                "pair": pair,
                "texts": len(texts),
                "schedule": repr(schedule),
                "tokens_per_call": rate(loop(run, params, schedule, 1)),
                "replayed": rate(by_replay(run, texts, schedule)),
            }
            lines.put(line)
            figures = (f"{line[name]:.6f}" for name in ("tokens_per_call", "replayed"))
            print(harness.row(pair, len(texts), f"`{schedule}`", *figures), flush=True)


def by_gamma(pair: str, temperature: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a line for each gamma. `same` and `other` are forecasts over measured tokens per call,
    each with its interval, and `formula` is the formula's over measured."""
    flags = pair_flags(pair, *(DRAWN if temperature else ()))
    here, elsewhere = (run_of(flags, args.texts, split) for split in ("test", "validation"))
    params, samples = here.engine.read(), args.samples if temperature else 1
    own, others = (passes(run, params) for run in (here, elsewhere))
    alpha = harness.alpha(own)[0]
    for gamma in args.gammas:
        schedule = Fixed(gamma)
        measured = loop(here, params, schedule, samples)
        same, other = (by_replay(here, texts, schedule) for texts in (own, others))
        yield {
            "pair": pair,
            "temperature": temperature,
            "texts": len(own),
            "other_texts": len(others),
            "samples": samples,
            "gamma": gamma,
            "alpha": alpha,
            "tokens_per_call": rate(measured),
            **over("same", same, measured),
            **over("other", other, measured),
            "formula": theory.expected_tokens(alpha, gamma) / rate(measured),
        }


def loop(run: Run, params: Any, schedule: Any, samples: int) -> np.ndarray:
    """Returns [2, texts] tokens and target calls of the engine, over all samples of a text."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    found = harness.outputs(run, plan, params, samples, seed=run.data.seed + 1)
    return np.stack([found.tokens.sum(axis=0), found.calls.sum(axis=0)]).astype(float)


def by_replay(run: Run, texts: Sequence[Accepted], schedule: Any) -> np.ndarray:
    """Returns the same by replay of passes."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    target: Any = plan.target
    length = run.data.lengths["inputs"]
    found = replay(plan, texts, vocab_size=target.vocab_size, length=length)
    counts = np.stack([found.tokens, found.calls]).astype(float)
    return counts.reshape(2, -1, len(texts)).sum(axis=1)


def rate(counts: np.ndarray) -> float:
    """Returns tokens per target call of all texts."""
    return float(operator.truediv(*counts.sum(axis=1)))


def over(name: str, foretold: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """Returns what is foretold over what is measured, with a 95 % interval. Texts are drawn in
    pairs: each with itself, or with an unrelated one of the other split."""
    count = min(foretold.shape[1], measured.shape[1])
    both = np.concatenate([foretold[:, :count], measured[:, :count]])
    low, high = bootstrap(both, lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]))
    interval = [float(low), float(high)]
    return {name: rate(foretold) / rate(measured), f"{name}_interval": interval}


if __name__ == "__main__":
    main()
