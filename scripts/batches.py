"""Compares speculation in batches with what its parts promise, and finds where it stops paying.

  python scripts/batches.py [--pairs ende captions] [--batch_sizes 1 2 4 8 16 32] [--gammas 1 3 7]

For each batch size and gamma: the forecast (`specdec forecast --batch_size`) and the measured
speed-up over the target alone in batches of the same texts, by turns in one process. JSON lines go
to docs/results/DEVICE/batches/, in place of those of the same pair and batch size. Captions need
../shared/multi30k; run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from forecast_check import PAIRS, built, passes
from remeasure import RESULTS, device_name

from specdec import forecast
from specdec.acceptance import Accepted
from specdec.benchmark.parts import Calls
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.instrument import forecasting
from specdec.program import Decoder, Program
from specdec.records import Lines
from specdec.schedules import Fixed

TURNS = 5
SIZES = (1, 2, 4, 8, 16, 32)
HEAD = (
    "| pair | texts at a time | gamma | v | forecast | measured | measured / forecast |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=["ende"], metavar="PAIR")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=SIZES, metavar="N")
    parser.add_argument("--gammas", nargs="+", type=int, default=[1, 3, 7], metavar="N")
    parser.add_argument("--texts", type=int, default=64, metavar="N")
    args = parser.parse_args()
    print(HEAD, flush=True)
    folder = RESULTS / device_name() / "batches"
    folder.mkdir(parents=True, exist_ok=True)
    lines = Lines(folder / "lines.jsonl")
    for pair in args.pairs:
        run = built([f"--gin_file={PAIRS[pair]}"], "test", args.texts)
        texts = list(passes(run, run.load()))
        for rows in args.batch_sizes:
            found = [{"pair": pair} | x for x in compared(run, texts, rows, args.gammas)]
            lines.replace([x for x in lines if (x["pair"], x["rows"]) != (pair, rows)])
            for line in found:
                lines.append(line)
                print(row(line), flush=True)
        own = [line for line in lines if line["pair"] == pair]
        for gamma in sorted({line["gamma"] for line in own}):
            ends = (f"{crossing(own, gamma, name)} {name}" for name in ("forecast", "measured"))
            print(f"{pair}, gamma {gamma}, slower from so many texts on: {', '.join(ends)}")


def crossing(lines: Sequence[dict[str, Any]], gamma: int, name: str) -> float | None:
    """Texts at a time at which a speed-up falls to 1, between two sizes along the logarithm of
    both; None where it does not.

    name: "forecast" or "measured".
    """
    points = sorted((x["rows"], x[name]) for x in lines if x["gamma"] == gamma)
    for (rows, faster), (more, slower) in itertools.pairwise(points):
        if faster >= 1 > slower:
            share = math.log(faster) / math.log(faster / slower)
            return round(rows * (more / rows) ** share, 1)
    return None


def compared(
    run: DecodeRun, texts: Sequence[Accepted], rows: int, gammas: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A line for each gamma, of batches of so many texts."""
    data = dataclasses.replace(run.data, batch_size=rows, buckets=())
    run = dataclasses.replace(run, data=data)
    plans = {gamma: dataclasses.replace(run.plan, schedule=Fixed(gamma)) for gamma in gammas}
    runs = {gamma: dataclasses.replace(run, plan=plan).laid_out() for gamma, plan in plans.items()}
    costs = forecasting.measured(run, texts, plans, rows)
    seconds = timed(runs, texts, rows)
    for gamma, plan in plans.items():
        replayed = forecasting.replayed(run, plan, texts)
        batches = forecast.grouped(replayed, len(texts), rows)
        own, count = costs[gamma], len(texts) // rows
        ours = forecast.seconds(plan, batches, own, count)
        assert ours is not None, "all parts were measured"
        alone = own.prefill_alone + batches.tokens * own.step
        ratios = [a / b for a, b in zip(seconds[0], seconds[gamma], strict=True)]
        yield {
            "rows": rows,
            "gamma": gamma,
            "texts": count * rows,
            "v": own.calls[Calls("target", gamma + 1)] / own.step,
            "step_ms": own.step * 1e3,
            "forecast": float(alone.sum() / ours.sum()),
            "measured": statistics.median(ratios),
            "measured_least": min(ratios),
            "measured_most": max(ratios),
        }


def timed(
    runs: dict[int, DecodeRun], texts: Sequence[Accepted], rows: int
) -> dict[int, list[float]]:
    """Seconds of all batches, of each turn, by gamma; 0 for the target alone."""
    first = next(iter(runs.values()))
    length = first.data.lengths["inputs"]
    batches = []
    for start in range(0, len(texts) - rows + 1, rows):
        inputs = np.zeros([rows, length], np.int32)
        for line, text in zip(inputs, texts[start : start + rows], strict=True):
            line[: len(text.inputs)] = text.inputs
        batches.append((row_keys(0, jnp.arange(start, start + rows)), jnp.asarray(inputs)))
    stored = first.load()
    ways: dict[int, tuple[Program, Any]] = {0: (Decoder(first.alone), first.params_alone(stored))}
    for gamma, run in runs.items():
        ways[gamma] = Decoder(run.plan), run.load()
    found: dict[int, list[float]] = {name: [] for name in ways}
    for turn in range(-1, TURNS):  # the first turn compiles
        for name, (program, params) in ways.items():
            program.warmed(params, *batches[0])
            start = time.perf_counter()
            for batch in batches:
                jax.block_until_ready(program.fetch(params, *batch))
            if turn >= 0:
                found[name].append(time.perf_counter() - start)
    return found


def row(line: dict[str, Any]) -> str:
    """A row of the table."""
    measured = f"{line['measured']:.2f} ({line['measured_least']:.2f}-{line['measured_most']:.2f})"
    ratio = line["measured"] / line["forecast"]
    return (
        f"| {line['pair']} | {line['rows']} | {line['gamma']} | {line['v']:.2f} "
        f"| {line['forecast']:.2f} | {measured} | {ratio:.2f} |"
    )


if __name__ == "__main__":
    main()
