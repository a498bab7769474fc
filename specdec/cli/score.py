"""`specdec score`: how likely the target finds given outputs."""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from specdec import tasks, terminal
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.settings import UsageError
from specdec.decoding import score


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "score",
        help="log-probabilities of given outputs",
        description="The target's log-probabilities of given outputs, teacher-forced, at "
        "temperature 1: of a task's targets, or of pairs of texts.",
        epilog="stdout gets one line per pair: log-probability of the output with its EOS in nats, "
        "number of tokens, output.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    runs.add_checkpoint_flags(parser)
    parser.add_argument(
        "--pairs",
        metavar="FILE",
        help="lines of input TAB output to score instead of the task's; - is standard input",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines with every token's log-probability, and the settings to FILE.gin",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    run = runs.build(args)
    vocabulary = runs.vocabulary_of(run)
    if args.pairs is None:
        batches = run.batches()
    else:
        batches = run.data.text_batches(_pairs(args.pairs), vocabulary)
    runs.refuse_unwritable(args.output_file)
    in_force = runs.in_force(run, "score") if args.output_file else ""
    params = run.load().target
    log_probs_of = jax.jit(functools.partial(score, target=run.plan.target))
    tokens, total = 0, 0.0
    with settings.json_lines(args.output_file, in_force) as file:
        for batch in batches:
            if batch.targets is None:
                raise UsageError("the task has no targets to score; give --pairs")
            log_probs = np.asarray(log_probs_of(params, batch.inputs, batch.targets))
            for record in _records(batch, log_probs):
                tokens += len(record["tokens"])
                total += record["log_prob"]
                if file:
                    print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
                else:
                    shown = terminal.one_line(record["target"])
                    print(f"{record['log_prob']:.4f}\t{len(record['tokens'])}\t{shown}", flush=True)
    if tokens:
        print(
            f"{tokens} tokens, {total / tokens:.4f} nats each, "
            f"perplexity {math.exp(-total / tokens):.3f}",
            file=sys.stderr,
        )


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    try:
        lines = sys.stdin if path == "-" else open(path, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--pairs {path} cannot be read: {error.strerror}") from error
    with lines:
        for number, line in enumerate(lines, start=1):
            text, tab, output = line.rstrip("\n").partition("\t")
            if not tab:
                raise UsageError(f"--pairs {path}, line {number} has no TAB; give input TAB output")
            yield text, output


def _records(batch: tasks.Batch, log_probs: np.ndarray) -> Iterator[dict[str, Any]]:
    assert batch.targets is not None and batch.target_texts is not None
    for row, (text, target) in enumerate(zip(batch.input_texts, batch.target_texts, strict=True)):
        last = np.max(np.flatnonzero(batch.targets[row] != batch.pad_id), initial=-1)
        length = int(last) + 1
        values = log_probs[row, :length].tolist()
        yield {
            "index": int(batch.index[row]),
            "input": text,
            "target": target,
            "log_prob": round(sum(values), 6),
            "tokens": batch.targets[row, :length].tolist(),
            "log_probs": [round(value, 6) for value in values],
        }
