"""Compares forecasts of tokens per target call with what the engine then measures.

  python scripts/forecast_check.py [--pairs ende highlights captions] [--texts 200] [--write]
      [--schedules]

For each pair and each gamma from 1 to 10: the forecast by replay of stored passes over the loop's
tokens per call, greedy on the same texts (which must be 1), greedy on texts of another split, and
at temperature 1, where both draw; with 95 % intervals over texts. With --schedules instead: of each
schedule the loop's tokens per call and the replay's, greedy on the same texts. A table goes to
stdout; with --write JSON lines go to docs/results/DEVICE/forecast/lines.jsonl, or to
schedules/replayed.jsonl, in place of those of the same pairs. Captions need ../shared/multi30k, and
it is run from the root of a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from specdec.program import Decoder
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Entropy,
    Fixed,
    Guard,
    Heuristic,
    JointConfidence,
)
from specdec.statistics import bootstrap
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
    again = {"pair": args.pairs, "temperature": args.temperatures, "gamma": args.gammas}
    write = _written(args.write, "forecast/lines.jsonl", again)
    for pair in args.pairs:
        for temperature in args.temperatures:
            for line in checked(pair, temperature, args.texts, args.samples, args.gammas):
                write(line)
                print(row(line), flush=True)


def _schedules(args: argparse.Namespace) -> None:
    print("| pair | texts | schedule | tokens per call | replay |\n|---|---:|---|---:|---:|")
    write = _written(args.write, "schedules/replayed.jsonl", {"pair": args.pairs})
    for pair in args.pairs:
        run = built([f"--gin_file={PAIRS[pair]}"], "test", args.texts)
        params = run.load()
        texts = list(passes(run, params))
        for schedule in SCHEDULES:
            line = {
                "pair": pair,
                "texts": len(texts),
                "schedule": repr(schedule),
                "tokens_per_call": rate(loop(run, params, schedule, 1)),
                "replayed": rate(by_replay(run, texts, schedule)),
            }
            write(line)
            figures = (f"{line[name]:.6f}" for name in ("tokens_per_call", "replayed"))
            cells = pair, str(len(texts)), f"`{schedule}`", *figures
            print(f"| {' | '.join(cells)} |", flush=True)


def _written(
    wanted: bool, name: str, again: Mapping[str, Collection[Any]]
) -> Callable[[dict[str, Any]], None]:
    """Puts lines into a file of results as they come, nowhere unless wanted. Of what the file has,
    lines with these values, which are measured again, go."""
    path = RESULTS / device_name() / name
    if wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [x for x in before if not all(json.loads(x)[key] in again[key] for key in again)]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def write(line: dict[str, Any]) -> None:
        if wanted:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")

    return write


def checked(
    pair: str, temperature: int, texts: int, samples: int, gammas: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A line for each gamma. `same` and `other` are forecasts over measured tokens per call, each
    with its interval, and `formula` is the formula's over measured."""
    flags = [f"--gin_file={PAIRS[pair]}", *(DRAWN if temperature else ())]
    here, elsewhere = (built(flags, split, texts) for split in ("test", "validation"))
    params = here.load()
    own, others = (list(passes(run, params)) for run in (here, elsewhere))
    alpha = acceptance.summarize(own).alphas["model"][0].value
    for gamma in gammas:
        schedule = Fixed(gamma)
        measured = loop(here, params, schedule, samples if temperature else 1)
        same, other = (by_replay(here, texts, schedule) for texts in (own, others))
        expected = theory.expected_tokens(alpha, gamma)
        yield {
            "pair": pair,
            "temperature": temperature,
            "texts": len(own),
            "other_texts": len(others),
            "samples": samples if temperature else 1,
            "gamma": gamma,
            "alpha": alpha,
            "tokens_per_call": rate(measured),
            **over("same", same, measured),
            **over("other", other, measured),
            "formula": expected / rate(measured),
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


def loop(run: DecodeRun, params: Params, schedule: Any, samples: int) -> np.ndarray:
    """[2, texts] tokens and target calls of the engine, over all samples of a text."""
    program = Decoder(dataclasses.replace(run.plan, schedule=schedule))
    counts = []
    for batch in run.batches():
        found = np.zeros([2, len(batch.index)])
        for sample in range(samples):
            keys = row_keys(run.data.seed + 1, jnp.asarray(batch.index), sample)
            output = jax.device_get(program(params, keys, jnp.asarray(batch.inputs)))
            found += output.length, output.trace.calls
        counts.append(found)
    return np.concatenate(counts, axis=1)


def by_replay(run: DecodeRun, texts: Sequence[Accepted], schedule: Any) -> np.ndarray:
    """The same, foretold."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    target: Any = plan.target
    length = run.data.lengths["inputs"]
    found = replay(plan, texts, vocab_size=target.vocab_size, length=length)
    counts = np.stack([found.tokens, found.calls]).astype(float)
    return counts.reshape(2, -1, len(texts)).sum(axis=1)


def rate(counts: np.ndarray) -> float:
    """Tokens per target call of all texts."""
    return float(operator.truediv(*counts.sum(axis=1)))


def over(name: str, foretold: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """What is foretold over what is measured, with a 95 % interval. Texts are drawn in pairs: each
    with itself, or with one of the other split that has nothing to do with it."""
    count = min(foretold.shape[1], measured.shape[1])
    both = np.concatenate([foretold[:, :count], measured[:, :count]])
    low, high = bootstrap(both, lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]))
    interval = [float(low), float(high)]
    return {name: rate(foretold) / rate(measured), f"{name}_interval": interval}


def row(line: dict[str, Any]) -> str:
    """Of the table."""
    ratios = (
        "{:.3f} ({:.3f} to {:.3f})".format(line[name], *line[f"{name}_interval"])
        for name in ("same", "other")
    )
    figures = f"{line['tokens_per_call']:.3f}", *ratios, f"{line['formula']:.3f}"
    cells = [line["pair"], line["temperature"], line["texts"], line["gamma"], *figures]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
