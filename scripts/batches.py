"""Compares speculation in batches with what its parts promise, and finds where it stops paying.

  python scripts/batches.py [--pairs ende captions] [--batch_sizes 1 2 4 8 16 32] [--gammas 1 3 7]

For each batch size and gamma: the forecast (`specdec forecast --batch_size`) and the measured
speed-up over the target alone in batches of the same texts, in alternation in one process. Lines go
to batches/lines.jsonl. Run it from the root of a checkout.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import harness
import numpy as np
from harness import Results, Run

from specdec.instrument import forecast, forecasting
from specdec.instrument.acceptance import Accepted
from specdec.instrument.benchmark.parts import Calls
from specdec.schedules import Fixed

TURNS = 5
SIZES = (1, 2, 4, 8, 16, 32)
COLUMNS = ("pair", "texts at a time", "gamma", "v", "predicted", "measured", "measured / predicted")


def main() -> None:
    parser = harness.parser(__doc__, texts=64, pairs=["ende"])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=SIZES, metavar="N")
    parser.add_argument("--gammas", nargs="+", type=int, default=[1, 3, 7], metavar="N")
    args = parser.parse_args()
    print(harness.head(*COLUMNS), flush=True)
    lines = Results.of(args, "batches/lines", "pair", "rows", "gamma")
    for pair in args.pairs:
        run = harness.run_of(harness.pair_flags(pair), args.texts)
        texts = harness.passes(run, run.engine.read())
        for rows in args.batch_sizes:
            for line in compared(run, texts, rows, args.gammas):
                lines.put({"pair": pair, **line})
                print(row(pair, line), flush=True)
        own = [line for line in lines if line["pair"] == pair]
        for gamma in sorted({line["gamma"] for line in own}):
            ends = (f"{crossing(own, gamma, name)} {name}" for name in ("forecast", "measured"))
            print(f"{pair}, gamma {gamma}, texts at a time from which it loses: {', '.join(ends)}")


def crossing(lines: Sequence[Mapping[str, Any]], gamma: int, name: str) -> float | None:
    """Returns the texts at a time at which a speed-up falls to 1, between two sizes along the
    logarithm of both; None if it does not.

    name: "forecast" or "measured".
    """
    points = sorted((x["rows"], x[name]) for x in lines if x["gamma"] == gamma)
    for (rows, faster), (more, slower) in itertools.pairwise(points):
        if faster >= 1 > slower:
            share = math.log(faster) / math.log(faster / slower)
            return round(rows * (more / rows) ** share, 1)
    return None


def compared(
    run: Run, texts: Sequence[Accepted], rows: int, gammas: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yields a line for each gamma, of batches of some rows."""
    runs = {f"gamma {gamma}": harness.in_batches(run, rows, Fixed(gamma)) for gamma in gammas}
    plans = {gamma: dataclasses.replace(run.plan, schedule=Fixed(gamma)) for gamma in gammas}
    costs = forecasting.measured(run, texts, plans, rows)
    times = harness.timed(runs, texts, TURNS, rows)
    for gamma, plan in plans.items():
        replayed = forecasting.replayed(run, plan, texts)
        batches = forecast.grouped(replayed, len(texts), rows)
        own, count = costs[gamma], len(texts) // rows
        ours = forecast.seconds(plan, batches, own, count)
        assert ours is not None, "all parts were measured"
        alone = own.prefill_alone + batches.tokens * own.step
        ratios = times["alone"].seconds.sum(axis=1) / times[f"gamma {gamma}"].seconds.sum(axis=1)
        yield {
            "rows": rows,
            "gamma": gamma,
            "texts": count * rows,
            "v": own.calls[Calls("target", gamma + 1)] / own.step,
            "step_ms": own.step * 1e3,
            "forecast": float(alone.sum() / ours.sum()),
            "measured": float(np.median(ratios)),
            "measured_least": float(ratios.min()),
            "measured_most": float(ratios.max()),
        }


def row(pair: str, line: Mapping[str, Any]) -> str:
    names = ("measured", "measured_least", "measured_most")
    measured = harness.interval([line[name] for name in names])
    figures = (f"{x:.2f}" for x in (line["v"], line["forecast"]))
    ratio = f"{line['measured'] / line['forecast']:.2f}"
    return harness.row(pair, line["rows"], line["gamma"], *figures, measured, ratio)


if __name__ == "__main__":
    main()
