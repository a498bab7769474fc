"""`specdec acceptance`: the papers' alpha of a run's pair."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec import acceptance
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.drafters import Autoregressive
from specdec.environment import environment


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "acceptance",
        help="measure alpha, teacher-forced",
        description="The target writes texts alone, with the run's sampling. Alpha is the mean of "
        "sum min(p, q) over their tokens: what exact speculative sampling accepts, whatever "
        "VERIFIER is. For a lenience l it is that of sum min(p/l, q). Takes the gin files of "
        "`specdec decode`.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--tokens",
        type=int,
        default=10_000,
        metavar="N",
        help="to write, in whole texts (default: %(default)s)",
    )
    parser.add_argument(
        "--tables",
        action="store_true",
        help="also for a unigram and a bigram table of the target's own texts, each counted from "
        "one half of them and measured on the other",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per text, the figures to FILE.summary.json, and the "
        "settings in force to FILE.gin",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.tokens < 1:
        raise UsageError(f"--tokens is {args.tokens}; give a positive number")
    run = runs.build(args)
    subject = _subject(run, runs.vocabulary_of(run).eos_id)
    batches = run.batches()
    runs.refuse_unwritable(args.output_file)
    if (first := next(batches, None)) is None:
        raise UsageError(f"split {run.split!r} has no examples; nothing to measure")
    # All that can be wrong has been looked at; from here on it takes long.
    params = run.load()
    given = ((batch.index, batch.inputs) for batch in itertools.chain([first], batches))
    texts = acceptance.generate(subject, params.target, given, seed=run.seed, tokens=args.tokens)
    records = acceptance.measure(subject, params, _shown(texts, args.tokens), tables=args.tables)
    summary = acceptance.summarize(_written(records, args.output_file))
    print(*acceptance.lines(summary), sep="\n")
    if summary.tokens < args.tokens:
        print(
            f"acceptance: the run's texts end after {summary.tokens} of {args.tokens} tokens; a "
            "higher --limit or another split has more",
            file=sys.stderr,
        )
    if args.output_file:
        report = {
            "environment": environment(),
            "run": _described(run, args.tokens),
            "texts": summary.texts,
            "tokens": summary.tokens,
            "alphas": {
                name: [alpha._asdict() for alpha in alphas]
                for name, alphas in summary.alphas.items()
            },
        }
        text = json.dumps(report, indent=2, ensure_ascii=False)
        Path(f"{args.output_file}.summary.json").write_text(f"{text}\n", encoding="utf-8")


def _subject(run: DecodeRun, eos_id: int) -> acceptance.Subject:
    drafter = runs.drafter_of(run)
    if not isinstance(drafter, Autoregressive):
        raise UsageError(
            f"the drafter is {type(drafter).__name__}, which has no distribution at every token; "
            "give one that is a model, with gin/drafters/autoregressive.gin"
        )
    for name, plain in {"decoder_prefix": "", "min_length": 0, "num_samples": 1}.items():
        if (value := getattr(run, name)) != plain:
            raise UsageError(f"{name} is {value!r}; leave it out, one plain output per text counts")
    return acceptance.Subject(run.target, drafter, run.sampling, run.max_length, eos_id)


def _shown(texts: Iterable[acceptance.Texts], total: int) -> Iterator[acceptance.Texts]:
    """The texts, under a bar if there is a terminal."""
    with tqdm(total=total, unit="token", leave=False, disable=not sys.stderr.isatty()) as bar:
        for batch in texts:
            bar.update(int(batch.length.sum()))
            yield batch


def _written(
    records: Iterable[acceptance.Accepted], path: str | None
) -> Iterator[acceptance.Accepted]:
    """The records, each written before the next is measured."""
    with settings.json_lines(path) as file:
        for record in records:
            if file:
                print(json.dumps(record._asdict()), file=file, flush=True)
            yield record


def _described(run: DecodeRun, tokens: int) -> dict[str, Any]:
    """What was measured, for the report; what `specdec bench` says as well has the same name."""
    return {
        "drafter": type(run.drafter).__name__,
        "sampling": repr(run.sampling),
        "dtype": {role: model.config.dtype for role, (model, _) in run.models().items()},
        "parameters": runs.parameter_counts(run),
        "lengths": dict(run.lengths),
        "split": run.split,
        "seed": run.seed,
        "limit": run.limit,
        "tokens": tokens,
    }
