"""What `Guard` is worth where a drafter is not: the embedded pair on texts that it does not know.

  python scripts/drift.py --folder DIR [--texts 60] [--turns 2]

The embedded pair translates its own test texts and image captions, which neither model was trained
for, with a fixed draft length, guarded and not, and the target alone, by turns in one process, one
text at a time. c and v are those of the parts, measured by `specdec tune` into DIR. JSON lines go
to docs/results/DEVICE/schedules/drift.jsonl. Needs ../shared/multi30k; run it from the root of a
checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from confirm import timed, with_schedule
from forecast_check import built, passes
from remeasure import RESULTS, device_name

from specdec import cli, demo, forecast
from specdec.forecast import tuning
from specdec.records import Lines
from specdec.schedules import Fixed, Guard

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
    for name, flags in TEXTS.items():
        run = built(flags, "test", args.texts)
        c, v = tuning.units(run.plan, costs, (0, args.gamma))
        fixed = Fixed(args.gamma, stop_at_end=True)
        schedules: dict[str, Any] = {"fixed": fixed, "guarded": Guard(fixed, c, v)}
        runs = {kind: with_schedule(run, schedule) for kind, schedule in schedules.items()}
        texts = list(passes(run, run.load()))
        tokens, seconds = timed(runs, texts, args.turns)
        for kind, schedule in schedules.items():
            found.append(
                {
                    "texts": name,
                    "kind": kind,
                    "schedule": repr(schedule),
                    "count": len(texts),
                    "turns": args.turns,
                    "tokens_per_call": tokens[kind],
                    "speedup": tuning.gain(seconds[kind], seconds["alone"]),
                    "slower": float(np.mean(seconds[kind] > 1.05 * seconds["alone"])),
                }
            )
            print(row(found[-1]), flush=True)
    Lines(folder / "drift.jsonl").replace(found)


def row(line: Mapping[str, Any]) -> str:
    """A row of the table."""
    value, low, high = line["speedup"]
    cells = (
        line["texts"],
        f"`{line['schedule']}`",
        f"{line['tokens_per_call']:.2f}",
        f"{value:.2f} ({low:.2f} to {high:.2f})",
        f"{line['slower']:.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
