"""Compares forecasts of tokens per target call with what the engine then measures.

  python scripts/forecast_check.py [--pairs ende highlights captions] [--texts 200] [--write]
      [--schedules]

For each pair and each gamma from 1 to 10: the forecast by replay of stored passes over the loop's
tokens per call, greedy on the same texts (which must be 1), greedy on texts of another split, and
at temperature 1, where both draw. With --schedules instead: of each schedule the loop's tokens per
call and the replay's, greedy on the same texts. A table goes to stdout; with --write JSON lines go
to docs/results/DEVICE/forecast.jsonl, or to schedules/replayed.jsonl beside it. Captions need
../shared/multi30k, and it is run from the root of a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name

from specdec import acceptance, cli, theory
from specdec.acceptance import Accepted
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.forecast import replay
from specdec.program import decoder
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Entropy,
    Fixed,
    Guard,
    Heuristic,
    JointConfidence,
)
from specdec.types import Params

PAIRS = {
    "ende": "demo.gin",
    "highlights": "demo_highlights.gin",
    "captions": "configs/multi30k.gin",
}
DRAWN = ("--gin_file=sampling/temperature.gin", "--gin_file=verifiers/speculative_sampling.gin")
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
HEAD = (
    "| pair | T | texts | gamma | tokens per call | replay, same texts | other texts | formula |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="PAIR")
    parser.add_argument("--temperatures", nargs="+", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--gammas", nargs="+", type=int, default=GAMMAS, metavar="N")
    parser.add_argument("--texts", type=int, default=200, metavar="N")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="of the loop at T = 1")
    parser.add_argument("--schedules", action="store_true", help="each schedule, not each gamma")
    parser.add_argument("--write", action="store_true", help="JSON lines to docs/results/")
    args = parser.parse_args()
    if args.schedules:
        _schedules(args)
        return
    print(HEAD, flush=True)
    write = _written(args.write, "forecast.jsonl")
    for pair in args.pairs:
        for temperature in args.temperatures:
            for line in checked(pair, temperature, args.texts, args.samples, args.gammas):
                write(line)
                print(row(line), flush=True)


def _schedules(args: argparse.Namespace) -> None:
    print("| pair | texts | schedule | tokens per call | replay |\n|---|---:|---|---:|---:|")
    write = _written(args.write, "schedules/replayed.jsonl")
    for pair in args.pairs:
        run = built([f"--gin_file={PAIRS[pair]}"], "test", args.texts)
        params = run.load()
        texts = list(passes(run, params))
        for schedule in SCHEDULES:
            line = {
                "pair": pair,
                "texts": len(texts),
                "schedule": repr(schedule),
                "tokens_per_call": loop(run, params, schedule, 1),
                "replayed": by_replay(run, texts, schedule),
            }
            write(line)
            figures = (f"{line[name]:.6f}" for name in ("tokens_per_call", "replayed"))
            cells = pair, str(len(texts)), f"`{schedule}`", *figures
            print(f"| {' | '.join(cells)} |", flush=True)


def _written(wanted: bool, name: str) -> Callable[[dict[str, Any]], None]:
    """Puts lines into a file of results as they come, which begins anew; nowhere unless wanted."""
    path = RESULTS / device_name() / name
    if wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)

    def write(line: dict[str, Any]) -> None:
        if wanted:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")

    return write


def checked(
    pair: str, temperature: int, texts: int, samples: int, gammas: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A line for each gamma. `same` and `other` are forecasts over measured tokens per call, and
    `formula` is the formula's over measured."""
    flags = [f"--gin_file={PAIRS[pair]}", *(DRAWN if temperature else ())]
    here, elsewhere = (built(flags, split, texts) for split in ("test", "validation"))
    params = here.load()
    own, others = (list(passes(run, params)) for run in (here, elsewhere))
    alpha = acceptance.summarize(own).alphas["model"][0].value
    for gamma in gammas:
        schedule = Fixed(gamma)
        measured = loop(here, params, schedule, samples if temperature else 1)
        same, other = (by_replay(here, texts, schedule) for texts in (own, others))
        yield {
            "pair": pair,
            "temperature": temperature,
            "texts": len(own),
            "other_texts": len(others),
            "samples": samples if temperature else 1,
            "gamma": gamma,
            "alpha": alpha,
            "tokens_per_call": measured,
            "same": same / measured,
            "other": other / measured,
            "formula": theory.expected_tokens(alpha, gamma) / measured,
        }


def built(flags: Sequence[str], split: str, texts: int) -> DecodeRun:
    """The run of some gin files, on so many texts of a split, in batches of 32."""
    more = (f"--limit={texts}", "--gin.BATCH_SIZE=32", f"--gin.SPLIT={split!r}")
    argv = settings.joined(["acceptance", *flags, *more])
    args = cli.overview().parse_args(argv)
    with contextlib.ExitStack() as args.contexts:
        run = runs.build(args)
    return run.ending_with(runs.vocabulary_of(run).eos_id)


def passes(run: DecodeRun, params: Params) -> Iterator[Accepted]:
    """What `specdec acceptance` stores of the run's texts."""
    given = ((batch.index, batch.inputs) for batch in run.batches())
    texts = acceptance.generate(run.plan, params.target, given, seed=run.data.seed, tokens=10**9)
    return acceptance.measure(run.plan, params, texts, tables=False)


def loop(run: DecodeRun, params: Params, schedule: Any, samples: int) -> float:
    """Tokens per target call of the engine."""
    program = decoder(dataclasses.replace(run.plan, schedule=schedule))
    tokens = calls = 0
    for batch in run.batches():
        for sample in range(samples):
            keys = row_keys(run.data.seed + 1, jnp.asarray(batch.index), sample)
            output = jax.device_get(program(params, keys, jnp.asarray(batch.inputs)))
            tokens += int(np.sum(output.length))
            calls += int(np.sum(output.trace.calls))
    return tokens / calls


def by_replay(run: DecodeRun, texts: Sequence[Accepted], schedule: Any) -> float:
    """The same, foretold."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    target: Any = plan.target
    length = run.data.lengths["inputs"]
    found = replay(plan, texts, vocab_size=target.vocab_size, length=length)
    return float(found.tokens.sum() / found.calls.sum())


def row(line: dict[str, Any]) -> str:
    """Of the table."""
    figures = (f"{line[name]:.3f}" for name in ("tokens_per_call", "same", "other", "formula"))
    cells = [line["pair"], line["temperature"], line["texts"], line["gamma"], *figures]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
