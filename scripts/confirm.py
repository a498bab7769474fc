"""What `specdec tune` recommends, beside the best fixed draft length, in measured time.

  python scripts/confirm.py --folder DIR [--pairs ende highlights captions] [--temperatures 0 1]
      [--models TARGET DRAFT]

`specdec tune` searches texts of the validation split, and its costs, passes and choice are kept in
DIR. With --models, which are grown from the pair and so write the same texts, costs and times are
theirs. The choice, the best fixed draft length that stops where a text ends, the heuristic of two
more and one fewer, and the target alone then take turns on texts of the test split, one text at a
time in one process. JSON lines go to docs/results/DEVICE/schedules/confirmed.jsonl, each with what
the parts promise for the same texts. Captions need ../shared/multi30k; run it from the root of a
checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from forecast_check import PAIRS, built, passes
from remeasure import RESULTS, device_name

from specdec import cli, forecast
from specdec.acceptance import Accepted
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.forecast import tuning
from specdec.instrument import forecasting
from specdec.program import CACHED, Decoder
from specdec.records import Lines
from specdec.schedules import Fixed, Heuristic
from specdec.statistics import ratio

DRAWN = ("--gin_file=sampling/temperature.gin", "--gin_file=verifiers/block.gin")
MODELS = ("CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH")
SAMPLES = 8  # of the coins, where texts are drawn
HEAD = (
    "| pair | T | schedule | speed-up | promised | over the best fixed length | promised |\n"
    "|---|---:|---|---:|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--folder", required=True, type=Path, metavar="DIR")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="PAIR")
    parser.add_argument("--temperatures", nargs="+", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--models", nargs=2, metavar="DIR", help="grown from the pair's own")
    parser.add_argument("--texts", type=int, default=60, metavar="N")
    parser.add_argument("--turns", type=int, default=2, metavar="N")
    args = parser.parse_args()
    print(HEAD, flush=True)
    folder = RESULTS / device_name() / "schedules"
    folder.mkdir(parents=True, exist_ok=True)
    lines = Lines(folder / "confirmed.jsonl")
    for pair in args.pairs:
        for temperature in args.temperatures:
            found = list(confirmed(pair, temperature, args))
            asked = found[0]["pair"], temperature, found[0]["sizes"]
            known = [x for x in lines if (x["pair"], x["temperature"], x["sizes"]) != asked]
            lines.replace([*known, *found])
            print(*map(row, found), sep="\n", flush=True)


def confirmed(pair: str, temperature: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each schedule."""
    own = [f"--gin_file={PAIRS[pair]}", *(DRAWN if temperature else ())]
    models = zip(MODELS, args.models or (), strict=bool(args.models))
    flags = [*own, *(f"--gin.{name}={str(Path(path).resolve())!r}" for name, path in models)]
    folder, parts = args.folder / f"{pair}_{temperature}", args.folder / f"{pair}_costs"
    if args.models:  # of the parts, which are the same at every temperature
        if not (parts / "costs.json").exists():
            tuned([f"--gin_file={PAIRS[pair]}", *flags[len(own) :], "--tokens=600"], parts)
        tuned([*own, f"--costs={parts / 'costs.json'}"], folder)
    else:
        parts = folder
        tuned(own, folder)
    costs = forecast.read(str(parts / "costs.json"), None)
    run = built(flags, "test", args.texts)
    chosen = built([*flags, f"--gin_file={folder / 'tuned.gin'}"], "test", args.texts)
    longest = chosen.plan.longest_draft
    schedules = {
        "fixed": Fixed(best_fixed(folder), stop_at_end=True),
        "chosen": chosen.plan.schedule,
        "heuristic": Heuristic(min(5, longest), tuning.buckets(longest)),
    }
    runs = {name: with_schedule(run, schedule) for name, schedule in schedules.items()}
    texts = list(passes(run, run.load()))
    tokens, seconds = timed(runs, texts, args.turns)
    promised = {name: promise(run, one, texts, costs) for name, one in schedules.items()}
    alone = costs.prefill_alone + np.array([text.tokens for text in texts]) * costs.step
    for name, schedule in schedules.items():
        yield {
            "pair": pair,
            "temperature": temperature,
            "sizes": list(dict(run.plan.target.sizes).values()),
            "kind": name,
            "schedule": repr(schedule),
            "texts": len(texts),
            "turns": args.turns,
            "tokens_per_call": tokens[name],
            "speedup": ratio(seconds["alone"], seconds[name]),
            "promised_speedup": float(alone.sum() / promised[name].sum()),
            "over_fixed": ratio(seconds["fixed"], seconds[name]),
            "promised_over_fixed": float(promised["fixed"].sum() / promised[name].sum()),
        }


def tuned(flags: Sequence[str], folder: Path) -> None:
    """Runs `specdec tune`, or goes on with it."""
    texts = "--gin.SPLIT='validation'", "--gin.LIMIT=None"
    if cli.main(["tune", *flags, *texts, f"--output_dir={folder}"]):
        raise SystemExit(f"{folder} was not made")


def best_fixed(folder: Path) -> int:
    """The fixed draft length that is fastest on the texts that decide."""
    tried = [x for x in Lines(folder / "tried.jsonl") if x["kind"] == "fixed"]
    tried = [x for x in tried if "shorter" not in x["schedule"]]
    return min(tried, key=lambda one: sum(one["seconds"][::2]))["setting"]


def with_schedule(run: DecodeRun, schedule: Any) -> DecodeRun:
    """One text at a time, in the layout for it."""
    data = dataclasses.replace(run.data, batch_size=1, buckets=())
    plan = dataclasses.replace(run.plan, schedule=schedule)
    return dataclasses.replace(run, data=data, plan=plan).laid_out()


def promise(run: DecodeRun, schedule: Any, texts: Sequence[Accepted], costs: Any) -> np.ndarray:
    """[texts] seconds by the parts."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    replayed = forecasting.replayed(run, plan, texts, SAMPLES)
    found = forecast.seconds(plan, replayed, costs, len(texts))
    assert found is not None, "the costs have every width"
    return found


def timed(
    runs: Mapping[str, DecodeRun], texts: Sequence[Accepted], turns: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Tokens per call, and [texts] seconds of all turns; "alone" is the target's."""
    first = next(iter(runs.values()))
    stored = first.load()
    ways: dict[str, Any] = {"alone": (Decoder(first.alone), first.params_alone(stored))}
    trees: dict[Any, Any] = {}
    for name, run in runs.items():
        models = tuple(run.plan.models().values())
        if models not in trees:
            trees[models] = run.load()
        ways[name] = Decoder(run.plan), trees[models]
    del stored, trees
    seconds = {name: np.zeros(len(texts)) for name in ways}
    counts = {name: np.zeros(2) for name in ways}
    for turn in range(-1, turns):  # the first turn compiles, and warms up
        if sum(leaf.nbytes for leaf in jax.tree.leaves(ways["alone"][1])) < CACHED:
            # Where in memory small ones lie makes some per cent, which are nobody's merit.
            ways = {name: (run, jax.tree.map(jnp.copy, x)) for name, (run, x) in ways.items()}
        for place, text in enumerate(texts if turn >= 0 else texts[:2]):
            inputs = np.zeros([1, first.data.lengths["inputs"]], np.int32)
            inputs[0, : len(text.inputs)] = text.inputs
            keys = row_keys(first.data.seed, jnp.array([place]), max(turn, 0))
            order = list(ways.items())
            for name, (program, params) in order if (place + turn) % 2 else order[::-1]:
                given = params, keys, jnp.asarray(inputs)
                execute = program.warmed(*given)
                start = time.perf_counter()
                output = jax.block_until_ready(execute(*given))
                if turn >= 0:
                    seconds[name][place] += time.perf_counter() - start
                    counts[name] += int(output.length[0]), int(output.trace.calls[0])
    return {name: float(a / b) for name, (a, b) in counts.items()}, seconds


def row(line: Mapping[str, Any]) -> str:
    """A row of the table."""
    value, low, high = line["speedup"]
    over, least, most = (x - 1 for x in line["over_fixed"])
    cells = (
        line["pair"],
        line["temperature"],
        f"`{line['schedule']}`",
        f"{value:.2f} ({low:.2f} to {high:.2f})",
        f"{line['promised_speedup']:.2f}",
        f"{over:+.1%} ({least:+.1%} to {most:+.1%})",
        f"{line['promised_over_fixed'] - 1:+.1%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
