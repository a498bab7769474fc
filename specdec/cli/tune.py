"""`specdec tune`: finds the fastest drafter, draft length and stopping rule for a target."""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec.cli import machine
from specdec.cli.variants import costs_of, rows_of, variants
from specdec.common.values import PositiveInt, UsageError, check
from specdec.predict.search import Search


def command(args: argparse.Namespace) -> None:
    for name in ("tokens", "longest"):
        check(f"--{name}", getattr(args, name), PositiveInt | None, UsageError)
    costs = costs_of(args)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    search = Search.of(
        variants(args, lines="acceptance"),
        Path(args.output_dir),
        tokens=args.tokens,
        longest=args.longest,
        rows=rows_of(args),
        costs=costs,
    )
    best = search.run()
    print(*best.lines(), sep="\n")
    text = best.write(search.folder, args.gin_file or [args.target])
    print(f"\n{search.folder / 'tuned.gin'}:\n{text}", end="")
