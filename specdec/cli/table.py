"""`specdec train --table=KIND`: a drafter's table, made of texts that the target writes."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from specdec import acceptance, tables
from specdec.cli import classifier, machine, settings
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.engine import Engine
from specdec.records import Lines
from specdec.values import PositiveInt, check

TOKENS = 100_000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `specdec train` takes for a table."""
    group = parser.add_argument_group(
        "tables", "in place of a model, for drafters that look things up, and schedules that learn"
    )
    group.add_argument(
        "--table",
        choices=tables.KINDS,
        help="make this from texts that the target of a run of `specdec decode` writes: 'ngram' "
        "for drafters/ngram.gin, 'store' for drafters/retrieval.gin; 'classifier' for "
        "schedules/disco.gin is fitted to --passes of the run",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help=f"of them, in whole texts (default: {TOKENS})",
    )
    group.add_argument(
        "--passes",
        metavar="FILE",
        help="what `specdec acceptance --output_file=FILE` wrote of the run, for a classifier",
    )


def make(args: argparse.Namespace) -> None:
    """Writes texts to OUTPUT_DIR/texts.jsonl, and of all of them OUTPUT_DIR/table. Texts that are
    there are kept."""
    if args.table == "classifier":
        return classifier.make(args)
    if args.passes is not None:
        raise UsageError(f"--passes is of a classifier, not of {args.table}; leave it out")
    if args.steps is not None:
        raise UsageError("--steps is of a model, and --table makes none; leave one of them out")
    tokens = TOKENS if args.tokens is None else args.tokens
    check("--tokens", tokens, PositiveInt, UsageError)
    overrides = {"Data.seed": args.seed}
    run = settings.build(DecodeRun, args, overrides, {"DRAFTER": None}).without_drafter()
    engine = runs.engine_of(run, unmarked=True)
    run = dataclasses.replace(run, plan=engine.plan, placement=engine.placement)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    lines = Lines.of(folder / "texts.jsonl", runs.in_force(run))
    table = folder / "table"
    texts = list(_texts(run, engine, lines, tokens))
    if not texts:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to count")
    arrays = (
        tables.count(texts, run.plan.models()["target"].vocab_size)
        if args.table == "ngram"
        else tables.store(texts)
    )
    shutil.rmtree(table, ignore_errors=True)
    tables.save(table, args.table, arrays, engine.vocabulary)
    written = sum(len(text) - 1 for text in texts)
    size = sum(array.nbytes for array in arrays.values())
    print(f"{table}: {written} tokens of {len(texts)} texts, {size / 1e6:.1f} MB")
    if written < tokens:
        print(
            f"train: the run's texts end after {written} of {tokens} tokens; another SPLIT may "
            "have more",
            file=sys.stderr,
        )


def _texts(run: DecodeRun, engine: Engine, lines: Lines, tokens: int) -> Iterator[list[int]]:
    """Texts of the target alone, the start token first: those that are there, then others."""
    before: dict[int, list[int]] = dict(lines.map(_line, "train"))
    lines.replace({"index": index, "tokens": text} for index, text in before.items())
    yield from before.values()
    left = tokens - sum(len(text) - 1 for text in before.values())
    if left <= 0:
        return
    params, given = engine.params, ((batch.index, batch.inputs) for batch in run.batches())
    texts = acceptance.generate(
        run.plan, params["target"], given, seed=run.data.seed, tokens=left, skip=list(before)
    )
    with tqdm(total=left, unit="token", leave=False, disable=not sys.stderr.isatty()) as bar:
        for batch in texts:
            for row in np.flatnonzero(batch.length):
                text = batch.tokens[row, : 1 + batch.length[row]].tolist()
                lines.append({"index": int(batch.index[row]), "tokens": text})
                bar.update(len(text) - 1)
                yield text


def _line(fields: dict[str, Any]) -> tuple[int, list[int]]:
    """Raises TypeError for a line of something else."""
    if fields.keys() != {"index", "tokens"}:
        raise TypeError(fields)
    return fields["index"], fields["tokens"]
