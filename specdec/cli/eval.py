"""`specdec eval`: the outputs of a run for a split of a task, and their metrics."""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from specdec import evaluate, tasks, terminal, theory
from specdec.cli import machine, predictions
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.cli.texts import Programs, decoded, programs_of
from specdec.environment import environment
from specdec.partitioning import Share
from specdec.plan import Plan
from specdec.records import as_json
from specdec.tasks.metrics import SumMetric, bleu, references, rouge, squad

# A target as metrics want it, and what makes of an output what they compare with it.
Reference: TypeAlias = tuple[Any, Callable[[str], Any]]

NONE = 2**31 - 1  # batches: none is left
PATIENCE = 7 * 24 * 3600  # seconds; hosts have unequal work after an interruption
# What the report takes from a prediction.
NEEDED = ("prediction", "tokens", "calls", "drafted", "accepted")
COMPARED = ("alone", "alone_tokens")
METRICS: Mapping[str, Callable] = {"bleu": bleu, "rouge": rouge, "squad": squad}


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "eval",
        help="metrics of a split of a task",
        description="Decodes a split of a task and computes metrics of the outputs. Takes the gin "
        "files of `specdec decode`. A run that was interrupted goes on where it stopped when the "
        "command is given again.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="gets predictions.jsonl, one object per text and sample, written as they come, "
        "run.gin, the settings in force, and metrics.json",
    )
    parser.add_argument(
        "--metric",
        action="append",
        choices=sorted(METRICS),
        help="compute this, and not the task's own metrics; may repeat",
    )
    parser.add_argument(
        "--compare",
        action="store_const",
        const=True,
        help="run the target alone as well, for the difference of the metrics, with its 95%% "
        "interval, and the number of identical outputs",
    )
    parser.add_argument(
        "--num_samples",
        type=int,
        metavar="N",
        help="outputs for each text, if it samples; metrics are means over samples",
    )
    parser.add_argument("--metrics_dir", metavar="DIR", help="write the metrics for TensorBoard")
    parser.add_argument(
        "--distributed",
        nargs="?",
        const="",
        metavar="ADDRESS,COUNT,INDEX",
        help="share the texts with the other hosts that run this command; all need the same DIR. "
        "JAX finds them (TPU pods, Slurm, Open MPI), or they are told: HOST:PORT of the first, how "
        "many there are, and which of them this is, from 0. With NUM_PARTITIONS one mesh is made "
        "of the devices of them all",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.distributed is not None:
        _join_other_hosts(args.distributed)
    predictions.refuse_url(args.output_dir)
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    machine.refuse_unwritable_folder("--metrics_dir", args.metrics_dir)
    flags = {"DecodeRun.compare": args.compare, "Data.num_samples": args.num_samples}
    run = runs.build(args, flags)
    vocabulary = runs.vocabulary_of(run)
    run = run.ending_with(*runs.stop_ids_of(run, vocabulary))
    prefix = run.data.prefix(vocabulary, run.plan.max_length)
    share = run.placement.share()
    host, hosts = shard = share[:2]
    batches = run.batches()
    expected = _references(run)
    metrics = _metrics_of(run, args.metric)
    writers = _metric_writers() if args.metrics_dir else None
    programs = programs_of(run, prefix)
    folder = predictions.PredictionsFolder(args.output_dir, runs.in_force(run, "eval"), shard)
    if share.first:  # of the hosts that share rows, the one that writes them
        args.contexts.enter_context(folder.locked(alone=jax.process_count() == 1))
    if folder.done():
        folder.check(_known(run), NEEDED + COMPARED * run.compare)
    total = len(range(host, len(expected), hosts)) * run.data.num_samples
    done = _common_start(run, share, folder.done(), total)
    if done is not None:
        # All that can be wrong has been looked at; from here on it takes long.
        text_of = functools.partial(tasks.detokenize, vocabulary)
        records = _decoded(run, batches, programs, text_of, len(prefix), done)
        shown = tqdm(
            records,
            initial=done,
            total=total,
            unit="text",
            leave=False,
            disable=not sys.stderr.isatty(),
        )
        if share.first:
            folder.append(shown, after=done)
        else:  # another host writes what these rows give
            collections.deque(shown, maxlen=0)
    rows = _table(folder.records(), len(expected), run.data.num_samples)
    if rows is None:
        print("the metrics are computed on the host that is the last to finish", file=sys.stderr)
        return
    report = _report(run, metrics, expected, rows, len(prefix))
    folder.conclude(f"{as_json(report, indent=2)}\n")
    print(*_lines(report), f"figures in {folder.metrics}", sep="\n")
    if writers:
        _write_scalars(writers, args.metrics_dir, run, report)


def _join_other_hosts(told: str) -> None:
    processes: dict[str, Any] = {}
    if told:
        try:
            address, count, index = told.split(",")
            processes = {"num_processes": int(count), "process_id": int(index)}
        except ValueError as error:
            raise UsageError(
                f"--distributed={told} is not ADDRESS,COUNT,INDEX, as in 10.0.0.1:8476,2,0; "
                "give all three"
            ) from error
        processes["coordinator_address"] = address
    try:  # a host that is done waits for the others: if one left, JAX would end them all
        jax.distributed.initialize(**processes, shutdown_timeout_seconds=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"--distributed: JAX finds no other hosts ({error}); leave it out on one host"
        ) from error


def _common_start(run: DecodeRun, share: Share, done: int, total: int) -> int | None:
    """How many of this host's predictions to keep, None if no text is left to decode.

    Hosts that share programs go on from the same batch, the first that one of them lacks.
    """
    if run.placement.mesh is None or jax.process_count() == 1:
        return done if done < total else None
    rows = run.data.batch_size // share.count
    batches = NONE if done >= total or not share.first else done // rows
    least = int(multihost_utils.process_allgather(np.int32(batches)).min())
    return None if least == NONE else min(done, least * rows)


def _known(run: DecodeRun) -> Iterator[dict[str, Any]]:
    """What is known of each of this host's predictions, in order."""
    for batch in run.batches():
        for sample in range(run.data.num_samples):
            targets = batch.target_texts or [None] * len(batch.input_texts)
            for index, text, target in zip(batch.index, batch.input_texts, targets, strict=False):
                known = {"index": int(index), "sample": sample, "input": text, "target": target}
                yield {name: value for name, value in known.items() if value is not None}


def _references(run: DecodeRun) -> list[Reference]:
    """Of the texts of all hosts."""
    data = run.data
    given = references(data.task, data.split, data.lengths)
    if not (found := list(itertools.islice(given, data.limit))):
        raise UsageError(f"split {data.split!r} has no examples; choose another one")
    return found


def _metrics_of(run: DecodeRun, names: Sequence[str] | None) -> Sequence[Callable]:
    """The metrics, which have all that they need."""
    own = getattr(tasks.get_task(run.data.task), "predict_metric_fns", ())  # mixtures have none
    metrics = [METRICS[name] for name in names] if names else list(own)
    if not metrics:
        raise UsageError(f"the task has no metrics; give one, --metric={' or '.join(METRICS)}")
    _signatures(metrics)
    return metrics


def _signatures(metrics: Iterable[Callable]) -> dict[str, str]:
    ours = [metric for metric in metrics if isinstance(metric, SumMetric)]
    return {type(metric).__name__.lower(): metric.signature for metric in ours}


def _decoded(
    run: DecodeRun,
    batches: Iterator[tasks.Batch],
    programs: Programs,
    text_of: Callable[[Sequence[int]], str],
    given: int,
    done: int,
) -> Iterator[dict[str, Any]]:
    """The records behind those that are done; what happened goes to stderr at the end."""
    params, summary = run.load(), terminal.Summary(exact=run.plan.exact)
    try:
        for text in decoded(
            run, params, batches, programs, text_of, summary, given=given, skip=done
        ):
            yield text.record()
    finally:
        if summary.texts:
            print(run.plan, *summary.lines(), sep="\n", file=sys.stderr)


def _table(
    records: Iterable[dict[str, Any]], texts: int, samples: int
) -> list[list[dict[str, Any]]] | None:
    """[samples][texts] the records, None as long as one is missing."""
    table: list[list[Any]] = [[None] * texts for _ in range(samples)]
    for record in records:
        table[record["sample"]][record["index"]] = record
    return None if any(None in row for row in table) else table


def _report(
    run: DecodeRun,
    metrics: Sequence[Callable],
    expected: Sequence[Reference],
    table: Sequence[Sequence[dict[str, Any]]],
    given: int,
) -> dict[str, Any]:
    """All of it follows from the predictions, so that an interruption does not show."""
    targets = [target for target, _ in expected]
    ours = _way(run.plan)
    fields = {ours: "prediction"}
    if run.compare:
        fields["alone"] = "alone"
    outputs = {
        way: [
            [prepare(one[field]) for one, (_, prepare) in zip(row, expected, strict=True)]
            for row in table
        ]
        for way, field in fields.items()
    }
    report: dict[str, Any] = {
        "texts": len(expected),
        "samples": run.data.num_samples,
        "metrics": {
            way: _merged(evaluate.values(metric, targets, texts) for metric in metrics)
            for way, texts in outputs.items()
        },
        "signatures": _signatures(metrics),
    }
    records = [one for row in table for one in row]
    if run.compare:
        both = outputs[ours], outputs["alone"]
        report["difference"] = {
            name: difference._asdict()
            for metric in metrics
            if isinstance(metric, SumMetric)
            for name, difference in evaluate.differences(metric, targets, *both).items()
        }
        same = "identical" if run.plan.exact else "same_by_chance"
        report[same] = sum(one["tokens"] == one["alone_tokens"] for one in records)
    if run.plan.drafts:
        report["speculation"] = _speculation(records, given)
    return report | {"environment": environment()}


def _way(plan: Plan) -> str:
    """What a report calls the outputs of a plan."""
    if plan.drafts:
        return "speculative"
    return "alone" if plan == plan.baseline() else "early"


def _merged(dictionaries: Iterable[dict[str, float]]) -> dict[str, float]:
    return {name: value for one in dictionaries for name, value in one.items()}


def _speculation(records: Sequence[dict[str, Any]], given: int) -> dict[str, Any]:
    tokens = [len(one["tokens"]) - given for one in records]
    calls = [one["calls"] for one in records]
    drafted = np.array([n for one in records for n in one["drafted"]])
    accepted = np.array([n for one in records for n in one["accepted"]])
    return {
        "tokens": sum(tokens),
        "target_calls": sum(calls),
        "tokens_per_call": theory.block_efficiency(tokens, calls) if any(calls) else None,
        "alpha": theory.empirical_alpha(accepted, drafted) if drafted.any() else None,
    }


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    ways, differences = report["metrics"], report.get("difference", {})
    for name in next(iter(ways.values())):
        figures = [f"{way} {values[name]:.2f}" for way, values in ways.items()]
        if name in differences:
            figures.append(
                "difference {value:+.2f} [{low:+.2f}, {high:+.2f}]".format(**differences[name])
            )
        yield f"{name}: {', '.join(figures)}"
    outputs = report["texts"] * report["samples"]
    if "identical" in report:
        yield f"identical outputs: {report['identical']} of {outputs}"
    if "same_by_chance" in report:
        yield f"NOT EXACT; the same by chance: {report['same_by_chance']} of {outputs}"
    for name, signature in report["signatures"].items():
        yield f"{name} by {signature}"


def _metric_writers() -> ModuleType:
    try:
        from clu import metric_writers
    except ImportError as error:
        missing = "--metrics_dir needs clu and tensorboard; pip install clu tensorboard"
        raise UsageError(missing) from error
    return metric_writers


def _write_scalars(
    writers: ModuleType, path: str, run: DecodeRun, report: Mapping[str, Any]
) -> None:
    scalars = {
        f"{way}/{name}": value
        for way, values in report["metrics"].items()
        for name, value in values.items()
    }
    writer = writers.SummaryWriter(path)
    writer.write_scalars(step_of(run.checkpoint_path), scalars)
    writer.close()


def step_of(checkpoint: str) -> int:
    """The training step that ends a checkpoint's name, as in checkpoint_1000000; else 0."""
    ends = re.search(r"(?:^|[/_])(\d+)/*$", checkpoint)
    return int(ends[1]) if ends else 0
