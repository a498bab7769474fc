"""`specdec acceptance`: the papers' alpha of a run's pair."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specdec import acceptance, records, tasks
from specdec.acceptance import Accepted
from specdec.cli import output, passes
from specdec.cli import run as runs
from specdec.cli.placement import parameter_counts
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.environment import environment
from specdec.records import Lines


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "acceptance",
        help="measure alpha, teacher-forced",
        description="The target writes texts alone, with the run's sampling. Alpha is the mean of "
        "sum min(p, q) over their tokens: what exact speculative sampling accepts, whatever "
        "VERIFIER is. For a lenience l it is that of sum min(p/l, q). Where a drafter proposes "
        "nothing, nothing is accepted. Takes the gin files of `specdec decode`. A measurement "
        "without tables that was interrupted goes on when the command is given again.",
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
        help="write JSON lines, one object per text, which `specdec forecast` reads, the figures "
        "to FILE.summary.json, and the settings in force to FILE.gin",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.tokens < 1:
        raise UsageError(f"--tokens is {args.tokens}; give a positive number")
    output.check(args)
    run = plain(runs.build(args))
    in_force = passes.with_record(run, runs.in_force(run, "acceptance"))
    batches = run.batches()
    if (first := next(batches, None)) is None:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to measure")
    lines = Lines.of(Path(args.output_file), in_force) if args.output_file else None
    # All that can be wrong has been looked at; from here on it takes long.
    texts = measured(run, itertools.chain([first], batches), args.tokens, lines, args.tables)
    summary = acceptance.summarize(texts)
    print(*acceptance.lines(summary), sep="\n")
    if summary.tokens < args.tokens:
        print(
            f"acceptance: the run's texts end after {summary.tokens} of {args.tokens} tokens; a "
            "higher --limit or another split has more",
            file=sys.stderr,
        )
    if lines:
        text = records.as_json(_report(run, summary, args.tokens), indent=2)
        records.write(Path(f"{lines.path}.summary.json"), f"{text}\n")


def plain(run: DecodeRun) -> DecodeRun:
    """The run, if it writes plain texts."""
    runs.require_baseline(run)
    samples = run.data.num_samples
    given = {"decoder_prefix": run.data.decoder_prefix}
    for name, value in (given | {"num_samples": 0 if samples == 1 else samples}).items():
        if value:
            raise UsageError(f"{name} is {value!r}; leave it out, one plain output per text counts")
    return run.ending_with(*runs.stop_ids_of(run, runs.vocabulary_of(run)))


def _texts(lines: Lines | None) -> Iterator[Accepted]:
    """Those of a file; raises RecordsError if it has others too."""
    return lines.map(lambda fields: Accepted(**fields), "acceptance") if lines else iter(())


def _before(lines: Iterable[Accepted], tokens: int) -> list[Accepted]:
    """The texts that were measured before, up to so many tokens; none of a file that also has
    tables, which are counted from all texts."""
    kept = []
    for one in lines:
        if tokens <= 0 or list(one.accepted) != ["model"]:
            break
        kept.append(one)
        tokens -= one.tokens
    return kept


def measured(
    run: DecodeRun,
    batches: Iterable[tasks.Batch],
    tokens: int,
    lines: Lines | None,
    tables: bool = False,
) -> Iterator[Accepted]:
    """Texts of so many tokens: those that were measured before, and others, which are written."""
    before = [] if tables else _before(_texts(lines), tokens)
    return _written(before, _others(run, batches, before, tokens, tables), lines)


def _others(
    run: DecodeRun,
    batches: Iterable[tasks.Batch],
    before: Sequence[Accepted],
    tokens: int,
    tables: bool,
) -> Iterator[Accepted]:
    """The texts that were not measured before, until there are tokens enough."""
    left = tokens - sum(one.tokens for one in before)
    if left > 0:
        params, seed, skip = run.load(), run.data.seed, [one.index for one in before]
        given = ((batch.index, batch.inputs) for batch in batches)
        texts = acceptance.generate(
            run.plan, params.target, given, seed=seed, tokens=left, skip=skip
        )
        yield from acceptance.measure(run.plan, params, _shown(texts, left), tables=tables)


def _shown(texts: Iterable[acceptance.Texts], total: int) -> Iterator[acceptance.Texts]:
    """The texts, under a bar if there is a terminal."""
    with tqdm(total=total, unit="token", leave=False, disable=not sys.stderr.isatty()) as bar:
        for batch in texts:
            bar.update(int(batch.length.sum()))
            yield batch


def _written(
    before: Sequence[Accepted], new: Iterable[Accepted], lines: Lines | None
) -> Iterator[Accepted]:
    """All records, each new one written before the next is measured."""
    if lines:
        lines.replace(map(_line, before))
    yield from before
    for one in new:
        if lines:
            lines.append(_line(one))
        yield one


def _line(one: Accepted) -> dict[str, Any]:
    """Without `depths` where all tokens go through all layers."""
    return {name: value for name, value in one._asdict().items() if name != "depths" or value}


def _report(run: DecodeRun, summary: acceptance.AcceptanceSummary, tokens: int) -> dict[str, Any]:
    return {
        "environment": environment(),
        "run": _described(run, tokens),
        **summary.record(),
    }


def _described(run: DecodeRun, tokens: int) -> dict[str, Any]:
    """What was measured, for the report; what `specdec bench` says as well has the same name."""
    data, models = run.data, run.plan.models()
    return {
        "drafter": type(run.plan.drafter).__name__,
        "sampling": repr(run.plan.sampling),
        "dtype": {role: model.dtype for role, model in models.items()},
        "parameters": parameter_counts(models),
        "lengths": run.lengths,
        "split": data.split,
        "seed": data.seed,
        "limit": data.limit,
        "tokens": tokens,
    }
