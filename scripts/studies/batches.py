"""Measures texts in batches: against the target alone, refilled rows, and CTranslate2's batches.

  python scripts/studies/batches.py curve [--pairs ende] [--batch_sizes 1 2 4 8] [--gammas 3 7]
  python scripts/studies/batches.py refill [--batch_size 16] [--gamma 3] [--ctranslate2 DIR]

`curve` decodes the same texts in batches of each size, with the drafter and with the target alone,
in alternation in one process. It counts the outputs that equal those of the target alone, one text
at a time, and audits the others. `refill` decodes a mixture of translations and highlights in fixed
batches sorted by length, and in rows that are refilled; DIR keeps CTranslate2's checkpoint.

Lines go to batches/. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import jax.numpy as jnp
import numpy as np
from harness import Results, Run

from specdec.common.environment import load_average
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram, GivenBatch, Way, batch_shapes
from specdec.decoding.refilling import Refilled
from specdec.schedules import Fixed
from specdec.testing.audit import divergences
from specdec.types import Params

SIZES = (1, 2, 4, 8, 16, 32, 64)
NEAR_TIE = 1e-4  # nats, of float32 logits
WIDTHS = (48, 144)
CURVE = ("pair", "texts at a time", "way", "over the target alone", "tokens per second")
REFILL = ("way", "seconds", "times as fast as fixed batches", "the same outputs")


def main() -> None:
    parser = harness.parser(__doc__, texts=64)
    parser.add_argument("measure", choices=("curve", "refill"))
    names = {"nargs": "+", "choices": harness.PAIRS, "metavar": "PAIR"}
    parser.add_argument("--pairs", default=["ende"], **names)
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=SIZES, metavar="N")
    parser.add_argument("--gammas", nargs="+", type=int, default=[3, 7], metavar="N")
    parser.add_argument("--batch_size", type=int, default=16, metavar="N")
    parser.add_argument("--gamma", type=int, default=3, metavar="N")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--ctranslate2", type=Path, metavar="DIR")
    args = parser.parse_args()
    curve(args) if args.measure == "curve" else refill(args)


def run_with(pair: str, texts: int, rows: int, gamma: int) -> Run:
    """Returns the run of a pair with drafts of a length, in the layout for batches of some rows."""
    run = harness.run_of(harness.pair_flags(pair), texts, batch_size=rows)
    return dataclasses.replace(run, engine=run.engine.variant(schedule=Fixed(gamma)))


def timed(
    ways: Mapping[str, Callable[[], Any]], turns: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Returns the seconds of each turn, and the last result, by way; the first turn compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found = {name: way() for name, way in ways.items()}
    for turn in range(turns):
        names = list(ways)
        for name in names if turn % 2 else names[::-1]:
            start = time.perf_counter()
            found[name] = ways[name]()
            seconds[name].append(time.perf_counter() - start)
            print(f"{name}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return seconds, found


def ratio(base: Sequence[float], own: Sequence[float]) -> list[float]:
    """Returns the median over turns of a ratio of times, with its least and most."""
    ratios = np.array(base) / np.array(own)
    return [float(np.median(ratios)), float(ratios.min()), float(ratios.max())]


def curve(args: argparse.Namespace) -> None:
    lines = Results.of(args, "batches/curve", "pair", "rows", "way")
    print(harness.head(*CURVE, "equal", "largest near-tie", "memory, MB"), flush=True)
    for pair in args.pairs:
        one = run_with(pair, args.texts, 1, args.gammas[0])
        right = texts_of(
            decoded(DecodeProgram(one.engine.alone().plan), one.engine.alone().params, one)
        )
        for rows in args.batch_sizes:
            for line in at_size(args, pair, rows, right):
                lines.put(line)
                print(line_of_curve(line), flush=True)


def at_size(
    args: argparse.Namespace, pair: str, rows: int, right: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a line for each way of decoding in batches of some rows."""
    run = run_with(pair, args.texts, rows, args.gammas[0])
    alone = run.engine.alone()
    ways = {"alone": (DecodeProgram(alone.plan), alone.params)}
    for gamma in args.gammas:
        engine = run.engine.variant(schedule=Fixed(gamma))
        ways[f"gamma {gamma}"] = DecodeProgram(engine.plan), engine.read()
    seconds, found = timed(
        {name: lambda way=way: decoded(*way, run) for name, way in ways.items()}, args.turns
    )
    index = np.arange(len(right))
    inputs = np.concatenate([batch.inputs for batch in run.batches()])[: len(right)]
    for name, (program, params) in ways.items():
        tokens = texts_of(found[name])
        gaps = divergences(
            alone.plan.target,
            alone.params["target"],
            row_keys(run.data.seed, jnp.asarray(index)),
            jnp.asarray(inputs),
            jnp.asarray(tokens),
            jnp.asarray(right),
            sampling=run.plan.sampling,
            stop_ids=run.plan.stop_ids,
        )
        shapes = batch_shapes(run.plan.target, rows, inputs.shape[1])
        memory = program.compile(params, *shapes).memory_analysis()
        count = int(np.sum(tokens != 0))
        yield {
            **harness.about(),
            "pair": pair,
            "rows": rows,
            "way": name,
            "texts": len(right),
            "speedup": ratio(seconds["alone"], seconds[name]),
            "tokens_per_second": [count / x for x in sorted(seconds[name], reverse=True)],
            "equal": len(right) - len(gaps),
            "gaps": [one.gap for one in gaps],
            "bytes": memory.temp_size_in_bytes + memory.argument_size_in_bytes,
            "load": load_average(),
        }


def line_of_curve(line: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    gap = f"{max(line['gaps']):.1e}" if line["gaps"] else ""
    own = line["tokens_per_second"]
    return harness.row(
        line["pair"],
        line["rows"],
        line["way"],
        harness.interval(line["speedup"]) if line["way"] != "alone" else "1",
        f"{np.median(own):.0f}",
        f"{line['equal']} of {line['texts']}",
        gap,
        f"{line['bytes'] / 2**20:.0f}",
    )


def decoded(program: Way, params: Params, run: Run) -> list[Any]:
    """Returns the outputs of all batches of a run."""
    keys = (row_keys(run.data.seed, jnp.asarray(batch.index)) for batch in run.batches())
    batches = zip(keys, run.batches(), strict=True)
    given = (GivenBatch(own, batch.inputs, batch.index >= 0) for own, batch in batches)
    return [(one, batch.live) for one, batch in outputs(program, params, list(given))]


def outputs(program: Way, params: Params, given: Sequence[GivenBatch]) -> Any:
    """Returns pairs of an output and its batch."""
    found = (output for output, _ in program.outputs(params, given))
    return list(zip(found, given, strict=True))


def texts_of(found: Sequence[Any]) -> np.ndarray:
    """Returns [texts, N], the tokens of all outputs."""
    return np.concatenate([np.asarray(output.tokens)[live] for output, live in found])


class Counted(Refilled):
    """Counts the target calls of all rows together.

    Attributes:
      steps: of the last stream.
    """

    steps = 0

    def _collect(self, state: Any, rows: Any) -> None:
        super()._collect(state, rows)
        self.steps = int(state.trace.steps)


class Mixture:
    """Translations and highlights, which one pair writes, with inputs of many lengths."""

    def __init__(self, texts: int, rows: int, gamma: int):
        self.rows = rows
        self.run = run_with("highlights", texts, rows, gamma)
        self.plan, self.params = self.run.plan, self.run.engine.read()
        own: list[list[int]] = []
        for run in (run_with("ende", texts, rows, gamma), self.run):
            for batch in run.batches():
                own += [row[row != 0].tolist() for row in batch.inputs[batch.index >= 0]]
        order = np.random.default_rng(0).permutation(len(own))
        self.texts = [own[i] for i in order]

    def batches(self, order: Any, widths: Sequence[int]) -> list[GivenBatch]:
        """Returns the texts in an order, in full batches of the smallest width that holds them."""
        found = []
        for start in range(0, len(order), self.rows):
            index = np.full([self.rows], -1, np.int32)
            index[: len(order[start : start + self.rows])] = order[start : start + self.rows]
            rows = [self.texts[i] if i >= 0 else [] for i in index]
            width = next(x for x in widths if x >= max(map(len, rows)))
            inputs = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
            found.append(GivenBatch(row_keys(0, jnp.asarray(index)), inputs, index >= 0))
        return found


def refill(args: argparse.Namespace) -> None:
    """Times fixed and refilled batches of a mixture of texts, and compares their outputs."""
    mix = Mixture(args.texts, args.batch_size, args.gamma)
    by_length = np.argsort([len(text) for text in mix.texts], kind="stable")[::-1]
    fixed = DecodeProgram(mix.plan)
    refilled = Counted(mix.plan, args.batch_size, WIDTHS)
    sorted_ones = mix.batches(by_length, WIDTHS)
    given = mix.batches(np.arange(len(mix.texts)), WIDTHS[-1:])
    ways: dict[str, Callable[[], Any]] = {
        "fixed, sorted": lambda: outputs(fixed, mix.params, sorted_ones),
        "refilled, as given": lambda: outputs(refilled, mix.params, given),
    }
    order = {"fixed, sorted": by_length, "refilled, as given": np.arange(len(mix.texts))}
    if args.ctranslate2:
        ways["CTranslate2"] = ctranslate2(args.ctranslate2, mix)
    print(harness.head(*REFILL), flush=True)
    seconds, found = timed(ways, args.turns)
    lines = Results.of(args, "batches/refill", "way", "rows", "gamma")
    right = sorted_tokens(found["fixed, sorted"], by_length)
    for name in ways:
        if name == "CTranslate2":
            texts = found[name]
        else:
            texts = sorted_tokens(found[name], order[name])
        line = {
            **harness.about(),
            "way": name,
            "rows": args.batch_size,
            "gamma": args.gamma,
            "texts": len(right),
            "tokens": sum(map(len, right)),
            "lengths": [min(map(len, right)), max(map(len, right))],
            "seconds": seconds[name],
            "steps": None if name == "CTranslate2" else steps_of(found[name], name, refilled),
            "speedup": ratio(seconds["fixed, sorted"], seconds[name]),
            "equal": sum(a == b for a, b in zip(right, texts, strict=True)),
            "load": load_average(),
        }
        lines.put(line)
        cells = f"{np.median(line['seconds']):.2f}", harness.interval(line["speedup"])
        print(harness.row(name, *cells, f"{line['equal']} of {len(right)}"), flush=True)


def steps_of(found: Sequence[Any], way: str, refilled: Counted) -> int:
    """Returns the target calls of a way; those of refilled rows are of the last stream."""
    if way.startswith("refilled"):
        return refilled.steps
    return sum(int(output.trace.steps) for output, _ in found)


def sorted_tokens(found: Sequence[Any], order: Any) -> list[list[int]]:
    """Returns the tokens of each text, in the order of the data."""
    rows = [output.row(row).tokens for output, given in found for row in np.flatnonzero(given.live)]
    texts = dict(zip(order, rows, strict=True))
    return [texts[i] for i in range(len(rows))]


def ctranslate2(folder: Path, mix: Mixture) -> Callable[[], list[list[int]]]:
    """Returns CTranslate2's greedy search of all texts in batches, which it sorts by length."""
    from peers import engines

    target: Any = mix.plan.target
    exported = engines.export(target.config, mix.run.checkpoint_path, "target", folder)
    threads = harness.about()["threads"]
    eos, longest = mix.plan.stop_ids[0], mix.plan.max_length
    work = engines.Work(WIDTHS, longest, eos, 0, threads, "cpu")
    engine = engines.CTranslate2(exported, "float32", work)
    return lambda: engine.generate_all(mix.texts, mix.rows)


if __name__ == "__main__":
    main()
