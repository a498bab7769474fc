"""Times what `specdec tune` recommends, beside the best fixed draft length.

  python scripts/confirm.py --folder DIR [--pairs ende highlights captions] [--temperatures 0 1]
      [--models TARGET DRAFT]

`specdec tune` searches texts of the validation split, and its costs, passes and choice are kept in
DIR. With --models, which are grown from the pair and so write the same texts, costs and times are
theirs. The choice, the best fixed draft length that stops where a text ends, the heuristic of two
more and one fewer, and the target alone then alternate on texts of the test split, one text at a
time in one process. Lines go to schedules/confirmed.jsonl, each with what the parts promise for the
same texts. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import harness
import numpy as np
from harness import PAIRS, Results, Run, checkpoint_flag, pair_flags, run_of

from specdec import cli
from specdec.common.records import Lines
from specdec.common.statistics import ratio
from specdec.instrument import forecast, forecasting
from specdec.instrument.acceptance import Accepted
from specdec.instrument.forecast import tuning
from specdec.schedules import Fixed, Heuristic

DRAWN = ("sampling/temperature.gin", "verifiers/block.gin")
SAMPLES = 8  # of the coins, where texts are drawn
COLUMNS = ("speed-up", "predicted", "over the best fixed length", "predicted")


def main() -> None:
    parser = harness.parser(__doc__, texts=60, pairs=list(PAIRS))
    parser.add_argument("--folder", required=True, type=Path, metavar="DIR")
    parser.add_argument("--temperatures", nargs="+", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--models", nargs=2, metavar="DIR", help="grown from the pair's own")
    parser.add_argument("--turns", type=int, default=2, metavar="N")
    args = parser.parse_args()
    print(harness.head("pair", "T", "schedule", *COLUMNS), flush=True)
    lines = Results.of(args, "schedules/confirmed", "pair", "temperature", "sizes", "kind")
    for pair in args.pairs:
        for temperature in args.temperatures:
            for line in confirmed(pair, temperature, args):
                lines.put(line)
                print(row(line), flush=True)


def confirmed(pair: str, temperature: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a line for each schedule."""
    own = pair_flags(pair, *(DRAWN if temperature else ()))
    models = zip(("", "DRAFT_"), args.models or (), strict=bool(args.models))
    grown = [checkpoint_flag(path, role) for role, path in models]
    folder, parts = args.folder / f"{pair}_{temperature}", args.folder / f"{pair}_costs"
    if args.models:  # of the parts, which are the same at every temperature
        if not (parts / "costs.json").exists():
            tuned([*pair_flags(pair), *grown, "--tokens=600"], parts)
        tuned([*own, f"--costs={parts / 'costs.json'}"], folder)
    else:
        parts = folder
        tuned(own, folder)
    costs = forecast.read(str(parts / "costs.json"), None)
    run = run_of([*own, *grown], args.texts)
    chosen = run_of([*own, *grown, f"--gin_file={folder / 'tuned.gin'}"], args.texts)
    longest, target = chosen.plan.longest_draft, cast(Any, run.plan.target)
    schedules = {
        "fixed": Fixed(best_fixed(folder), stop_at_end=True),
        "chosen": chosen.plan.schedule,
        "heuristic": Heuristic(min(5, longest), tuning.buckets(longest)),
    }
    runs = {name: harness.in_batches(run, 1, schedule) for name, schedule in schedules.items()}
    texts = harness.passes(run, run.engine.read())
    times = harness.timed(runs, texts, args.turns)
    seconds = {name: one.seconds.sum(axis=0) for name, one in times.items()}
    promised = {name: promise(run, one, texts, costs) for name, one in schedules.items()}
    alone = costs.prefill_alone + np.array([text.tokens for text in texts]) * costs.step
    for name, schedule in schedules.items():
        yield {
            "pair": pair,
            "temperature": temperature,
            "sizes": list(dict(target.sizes).values()),
            "kind": name,
            "schedule": repr(schedule),
            "texts": len(texts),
            "turns": args.turns,
            "tokens_per_call": float(times[name].tokens.sum() / times[name].calls.sum()),
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
    """Returns the fixed draft length that is fastest on the texts that decide."""
    tried = [x for x in Lines(folder / "tried.jsonl") if x["kind"] == "fixed"]
    tried = [x for x in tried if "shorter" not in x["schedule"]]
    return min(tried, key=lambda one: sum(one["seconds"][::2]))["setting"]


def promise(run: Run, schedule: Any, texts: Sequence[Accepted], costs: Any) -> np.ndarray:
    """Returns [texts] seconds by the parts."""
    plan = dataclasses.replace(run.plan, schedule=schedule)
    replayed = forecasting.replayed(run, plan, texts, SAMPLES)
    found = forecast.seconds(plan, replayed, costs, len(texts))
    assert found is not None, "the costs have every width"
    return found


def row(line: Mapping[str, Any]) -> str:
    return harness.row(
        line["pair"],
        line["temperature"],
        f"`{line['schedule']}`",
        harness.interval(line["speedup"]),
        f"{line['promised_speedup']:.2f}",
        harness.interval([x - 1 for x in line["over_fixed"]], "+.1%"),
        f"{line['promised_over_fixed'] - 1:+.1%}",
    )


if __name__ == "__main__":
    main()
