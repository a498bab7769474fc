"""`specdec forecast`: predicts the speed-up at every draft length from recorded texts."""

from __future__ import annotations

import argparse
import itertools
import operator
import re

from specdec.cli import output, settings
from specdec.cli.variants import costs_of, rows_of, variants
from specdec.common.values import UsageError
from specdec.predict import predicted_speedup
from specdec.predict.draft_lengths import GAMMAS, DraftLengths


def command(args: argparse.Namespace) -> None:
    gammas = _gammas(args.gammas or GAMMAS)
    read = [file for file in (args.passes, args.costs) if file]
    output.check(args, inputs=[*read, f"{args.passes}.gin"])
    ready = DraftLengths.of(
        variants(args, lines="forecast"),
        args.passes,
        gammas,
        asked=args.gammas is not None,
        costs=costs_of(args),
        rows=rows_of(args),
    )
    # All checks are done; the long work begins.
    lines = settings.json_lines(args.output_file, ready.variants[0].settings)
    for variant, group in itertools.groupby(ready.predictions(), key=operator.itemgetter(0)):
        predicted = []
        for _, prediction in group:
            predicted.append(prediction)
            if lines:
                lines.append(prediction.record())
        if variant.name:
            print(f"\n{variant.name}")
        plan = variant.run.plan
        name = type(plan.drafter).__name__ if plan.drafts else plan.target
        print(f"{name}, {plan.sampling}, {predicted[0].costs}")
        print(*predicted_speedup.lines(predicted), sep="\n", flush=True)


def _gammas(text: str) -> list[int]:
    """Returns the draft lengths in a text such as '1,2,4' or '1-10', ascending."""
    lengths: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if ends is None or int(ends[1]) < 1 or int(ends[2] or ends[1]) < int(ends[1]):
            raise UsageError(
                f"--gammas is {text!r}; give draft lengths from 1 on, as 1,2,4 or 1-10"
            )
        lengths |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(lengths)
