"""`specdec train --table=classifier`: what `schedules.Disco` stops by, fitted to passes."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec import acceptance, tables
from specdec.acceptance import Accepted
from specdec.cli import machine, passes, settings
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.forecast import kind_of
from specdec.schedules.disco import logit

HELD_OUT = 5  # every so manieth text
FEWEST = 2 * HELD_OUT  # texts


def make(args: argparse.Namespace) -> None:
    """Writes OUTPUT_DIR/table, and the losses to OUTPUT_DIR/train.log."""
    from specdec.training import classifier  # optax, which no other command needs

    if args.passes is None:
        raise UsageError(
            "--table=classifier needs --passes=FILE; make it with `specdec acceptance "
            "--output_file=FILE` of this run"
        )
    run = runs.resolved(settings.build(DecodeRun, args, {}))
    runs.require_drafter(run)
    run = run.ending_with(*runs.stop_ids_of(run, runs.vocabulary_of(run)))
    texts = passes.read(args.passes)
    name, drafter = _recorded(run.plan.drafter, args.passes)
    passes.check(args.passes, runs.in_force(run), run, texts, {name: drafter})
    if len(texts) < FEWEST:
        raise UsageError(f"--passes {args.passes} has {len(texts)} texts; give {FEWEST} or more")
    longest = run.plan.longest_draft
    recordings = [recording(text, name, kind_of(drafter), args.passes) for text in texts]
    held = [one for index, one in enumerate(recordings) if index % HELD_OUT == 0]
    others = [one for index, one in enumerate(recordings) if index % HELD_OUT]
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    given, held_out = (classifier.examples(part, longest) for part in (others, held))
    steps = {"steps": args.steps} if args.steps else {}
    with open(folder / "train.log", "w", encoding="utf-8") as log:

        def say(line: str) -> None:
            print(line, file=log, flush=True)
            print(line, file=sys.stderr)

        arrays = classifier.fit(given, held_out, seed=args.seed or 0, say=say, **steps)
    table = folder / "table"
    shutil.rmtree(table, ignore_errors=True)
    tables.save(table, "classifier", arrays, runs.vocabulary_of(run))
    found = classifier.separation(np.asarray(logit(arrays, held_out.features)), held_out)
    surest = classifier.separation(held_out.features[:, 0], held_out)
    print(
        f"{table}: of {len(texts)} texts, drafts of {longest} tokens. Of two tokens, one accepted "
        f"and one not, it finds which in {found:.1%}, and the draft's confidence in {surest:.1%}, "
        "of texts that were held out"
    )


def _recorded(drafter: Any, path: str) -> tuple[str, Any]:
    """The one drafter that passes are to have a recording of."""
    found = list(acceptance.recorded(drafter))
    if len(found) != 1:
        raise UsageError(
            f"{type(drafter).__name__} has {len(found)} drafters whose opinions --passes {path} "
            "would have recorded; train the classifier with the one model that is to be stopped"
        )
    if found[0][1].block is not None:
        raise UsageError(
            f"{found[0][0]} drafts a block at once, which a classifier cannot stop; train it with "
            "a drafter that goes token by token"
        )
    return found[0]


def recording(text: Accepted, name: str, kind: str, path: str) -> dict[str, Any]:
    """What is seen of each token, and the probability that it is accepted."""
    told = text.drafts.get(name, {})
    needed = ("confidence", "entropy", "top", kind)
    if missing := [one for one in needed if len(told.get(one, ())) != len(text.output)]:
        raise UsageError(
            f"--passes {path}: text {text.index} has no recording {missing[0]!r} of {name}; make "
            "the passes anew with `specdec acceptance`"
        )
    said: Sequence[Any] = told[kind]
    accepted = np.minimum(said, 1) if kind == "ratio" else np.equal(said, text.output)
    return {"accepted": accepted, **{one: told[one] for one in needed[:3]}}
