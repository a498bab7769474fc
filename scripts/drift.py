"""What `Guard` is worth where a drafter is not: the embedded pair on texts that it does not know.

  python scripts/drift.py --folder DIR [--texts 60] [--turns 3]

The embedded pair translates its own test texts and image captions, which neither model was trained
for, with a fixed draft length, guarded and not, and the target alone, by turns in one process, one
text at a time. c, v and prefill are those of the parts, measured by `specdec tune` into DIR, or
those of whole texts of the pair's other split, in which an iteration takes what it takes. Beside
them are the same program that never drafts, and the target alone once more, which says what of it
is noise. JSON lines go to docs/results/DEVICE/schedules/drift.jsonl. Needs ../shared/multi30k; run
it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from confirm import timed, with_schedule
from forecast_check import built, passes
from remeasure import RESULTS, device_name

from specdec import cli, demo, forecast
from specdec.cli.run import DecodeRun
from specdec.forecast import Costs, tuning
from specdec.records import Lines
from specdec.schedules import Fixed, Guard
from specdec.statistics import ratio

OWN = ("--gin_file=demo.gin",)
CAPTIONS = (
    *OWN,
    "--gin_file=tasks/local.gin",
    "--gin.TASK_NAME='captions'",
    "--gin.TASK_FILES={'test': '../shared/multi30k/test_2016.tsv'}",
    "--gin.TASK_PREFIX='translate English to German: '",
    "--gin.VOCABULARY=@tasks.SentencePiece()",
    f"--gin.tasks.SentencePiece.path={demo.path('vocabulary.model')!r}",
)
TEXTS = {"its own": OWN, "captions": CAPTIONS}
HEAD = (
    "| texts | schedule | tokens per call | speed-up | texts above 1.05 times |\n"
    "|---|---|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--folder", required=True, type=Path, metavar="DIR")
    parser.add_argument("--gamma", type=int, default=7, metavar="N")
    parser.add_argument("--texts", type=int, default=60, metavar="N")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    args = parser.parse_args()
    argv = [*OWN, "--gin.LIMIT=None", "--gin.SPLIT='validation'", "--tokens=2000"]
    if cli.main(["tune", *argv, f"--output_dir={args.folder}"]):
        raise SystemExit("the parts were not measured")
    costs = forecast.read(str(args.folder / "costs.json"), None)
    folder = RESULTS / device_name() / "schedules"
    folder.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    found = []
    run = built(OWN, "validation", args.texts // 2)
    fixed = Fixed(args.gamma, stop_at_end=True)
    prefill = round(costs.prefill_alone / costs.step, 3), round(costs.prefill / costs.step, 3)
    guard = Guard(fixed, *tuning.units(run.plan, costs, (0, args.gamma)), prefill=prefill)
    schedules: dict[str, Any] = {
        "fixed": fixed,
        "guarded": guard,
        "guarded, by whole texts": by_whole_texts(run, guard, costs, args.turns),
        "never": never(guard),
    }
    for name, flags in TEXTS.items():
        run = built(flags, "test", args.texts)
        runs = {kind: with_schedule(run, schedule) for kind, schedule in schedules.items()}
        runs["alone again"] = dataclasses.replace(runs["fixed"], plan=runs["fixed"].alone)
        texts = list(passes(run, run.load()))
        tokens, seconds = timed(runs, texts, args.turns)
        for kind in runs:
            found.append(
                {
                    "texts": name,
                    "kind": kind,
                    "schedule": repr(schedules.get(kind)),
                    "count": len(texts),
                    "turns": args.turns,
                    "tokens_per_call": tokens[kind],
                    "speedup": ratio(seconds["alone"], seconds[kind]),
                    "slower": float(np.mean(seconds[kind] > 1.05 * seconds["alone"])),
                }
            )
            print(row(found[-1]), flush=True)
    Lines(folder / "drift.jsonl").replace(found)


def by_whole_texts(run: DecodeRun, guard: Guard, costs: Costs, turns: int) -> Guard:
    """With v such that iterations take what they took in whole texts, with a draft and without."""
    always = dataclasses.replace(guard, limit=1e6)
    schedules = {"always": always, "never": never(guard)}
    runs = {name: with_schedule(run, schedule) for name, schedule in schedules.items()}
    texts = list(passes(run, run.load()))
    tokens, seconds = timed(runs, texts, turns)
    total = sum(text.tokens for text in texts)

    def of_call(name: str, prefill: float) -> float:
        return (seconds[name].sum() / turns - len(texts) * prefill) / (total / tokens[name])

    step = of_call("alone", costs.prefill_alone)
    none, whole = (of_call(name, costs.prefill) / step for name in ("never", "always"))
    longest = guard.buckets[-1]
    return dataclasses.replace(
        guard, v=(round(float(none), 3), round(float(whole - longest * guard.c), 3))
    )


def never(guard: Guard) -> Guard:
    """One that can afford nothing: the program of the others, without drafts."""
    return dataclasses.replace(guard, c=1e6)


def row(line: Mapping[str, Any]) -> str:
    """A row of the table."""
    value, low, high = line["speedup"]
    cells = (
        line["texts"],
        line["kind"],
        f"{line['tokens_per_call']:.2f}",
        f"{value:.2f} ({low:.2f} to {high:.2f})",
        f"{line['slower']:.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
