"""`specdec eval`: decodes a split of a task, and compares the outputs with its references."""

from __future__ import annotations

import collections
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from specdec import tasks
from specdec.common import theory
from specdec.common.environment import environment
from specdec.common.json_values import JsonObject
from specdec.common.records import as_json
from specdec.common.values import UsageError
from specdec.decoding.beam_plan import AnyPlan
from specdec.measure import output_metrics
from specdec.measure.prediction_files import PredictionsFolder
from specdec.models.partitioning import Share
from specdec.plan import Plan
from specdec.tasks.metrics import SumMetric, bleu, references, rouge, squad, wer
from specdec.texts.measured_run import Run, Variant
from specdec.texts.sources import Source
from specdec.texts.text_engine import TextEngine

# The reference of a text as metrics take it, and a function that prepares an output alike.
Reference: TypeAlias = tuple[object, Callable[[str], object]]

NONE = 2**31 - 1  # stands for a number of batches: no text is left to decode
# The fields of a prediction that the report reads.
NEEDED = ("prediction", "tokens", "calls", "drafted", "accepted")
COMPARED = ("alone", "alone_tokens")
NEEDED_OF_BEAMS = ("predictions", "tokens", "scores", "steps", "calls")
METRICS: Mapping[str, Callable] = {"bleu": bleu, "rouge": rouge, "squad": squad, "wer": wer}


class Report(TypedDict):
    """The fields of an evaluation's report that are printed."""

    texts: int
    samples: int  # per text
    metrics: dict[str, dict[str, float]]  # way to decode, such as "alone" -> metric -> value
    signatures: dict[str, str]  # metric -> its settings
    difference: NotRequired[dict[str, dict[str, float]]]
    identical: NotRequired[int]
    same_by_chance: NotRequired[int]


class Evaluation(NamedTuple):
    """The texts of a run, with their references and metrics, and the engine that decodes them."""

    variant: Variant
    expected: Sequence[Reference]  # of the texts of all hosts, in order
    metrics: Sequence[Callable]
    source: Source  # the input texts of this host
    engine: TextEngine
    scalars: Callable[[Report], None] | None = None  # writes a report for TensorBoard

    @classmethod
    def of(
        cls, variant: Variant, names: Sequence[str] | None = None, metrics_dir: str | None = None
    ) -> Evaluation:
        """Returns the evaluation of a run by the named metrics, by default the task's."""
        run = variant.run
        source, expected = run.source(), _references(run)
        metrics, engine = _metrics_of(run, names), TextEngine.open(run)
        scalars = _scalars(metrics_dir, run.checkpoint_path) if metrics_dir else None
        return cls(variant, expected, metrics, source, engine, scalars)

    @classmethod
    def without_metrics(cls, variant: Variant) -> Evaluation:
        """Returns an evaluation that only decodes the run's texts and computes no metrics."""
        run = variant.run
        count = sum(len(batch.input_texts) for batch in run.batches(everywhere=True))
        if not count:
            raise UsageError(f"split {run.data.split!r} has no examples; choose another one")
        nothing: list[Reference] = [(None, str)] * count
        return cls(variant, nothing, (), run.source(), TextEngine.open(run))

    def write(self, folder: PredictionsFolder) -> Report | None:
        """Decodes the texts that the folder lacks; returns the report, or None if some lack."""
        run = self.variant.run
        share, shard = run.placement.share(), folder.shard
        if folder.done():
            needed = NEEDED_OF_BEAMS if run.beams else NEEDED
            folder.check(_known(run), needed + COMPARED * run.compare)
        total = len(range(shard[0], len(self.expected), shard[1])) * run.data.num_samples
        done = _common_start(run, share, folder.done(), total)
        if done is not None:
            # All settings have been checked; what follows takes long.
            with self.engine.running(), self._decoded(done, total) as shown:
                if share.first:
                    folder.append(shown, after=done)
                else:  # another host writes the outputs of these rows
                    collections.deque(shown, maxlen=0)
        rows = _table(map(_with_best, folder.records()), len(self.expected), run.data.num_samples)
        if rows is None:
            return None
        report = self._report(rows)
        folder.conclude(f"{as_json(report, indent=2)}\n")
        if self.scalars is not None:
            self.scalars(report)
        return report

    def _decoded(self, done: int, total: int) -> tqdm:
        """Returns a progress bar that iterates over the JSON fields of texts after `done` ones."""
        texts = self.engine.decode(self.source, skip=done)
        return tqdm(
            (text.record() for text in texts),
            initial=done,
            total=total,
            unit="text",
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def _report(self, table: Sequence[Sequence[JsonObject]]) -> Report:
        run, expected = self.variant.run, self.expected
        targets = [target for target, _ in expected]
        ours = "beams" if run.beams else _way(run.plan)
        fields = {ours: "prediction"} | ({"alone": "alone"} if run.compare else {})
        outputs = {
            way: [
                [prepare(record[field]) for record, (_, prepare) in zip(row, expected, strict=True)]
                for row in table
            ]
            for way, field in fields.items()
        }
        report: Any = {
            "texts": len(expected),
            "samples": run.data.num_samples,
            "metrics": {
                way: _merged(
                    output_metrics.values(metric, targets, texts) for metric in self.metrics
                )
                for way, texts in outputs.items()
            },
            "signatures": _signatures(self.metrics),
        }
        records = list(itertools.chain.from_iterable(table))
        if run.compare:
            both = outputs[ours], outputs["alone"]
            report["difference"] = {
                name: difference._asdict()
                for metric in self.metrics
                if isinstance(metric, SumMetric)
                for name, difference in output_metrics.differences(metric, targets, *both).items()
            }
            same = "identical" if run.plan.exact else "same_by_chance"
            report[same] = sum(x["tokens"] == x["alone_tokens"] for x in records)
        if run.beams:
            report["search"] = _of_search(self.engine.plan, records)
        elif run.plan.drafts:
            report["speculation"] = _speculation(records, len(self.variant.engine.prefix))
        return report | {"environment": environment()}


def _common_start(run: Run, share: Share, done: int, total: int) -> int | None:
    """Returns how many predictions this host keeps, so that all hosts resume at the same batch.

    Returns None if no text is left."""
    if run.placement.mesh is None or jax.process_count() == 1:
        return done if done < total else None
    rows = run.data.batch_size // share.count
    batches = NONE if done >= total or not share.first else done // rows
    least = int(multihost_utils.process_allgather(np.int32(batches)).min())
    return None if least == NONE else min(done, least * rows)


def _known(run: Run) -> Iterator[Mapping[str, object]]:
    """Yields the index, input, target and sample that each of this host's predictions must have."""
    for batch in run.batches():
        for sample in range(run.data.num_samples):
            targets = batch.target_texts or [None] * len(batch.input_texts)
            for index, text, target in zip(batch.index, batch.input_texts, targets, strict=False):
                known = {"index": int(index), "input": text, "target": target}
                known |= {} if run.beams else {"sample": sample}
                yield {name: value for name, value in known.items() if value is not None}


def _with_best(record: JsonObject) -> JsonObject:
    """Returns a beam search's record with its best beam as the prediction; others unchanged."""
    if "predictions" not in record:
        return record
    best = {"sample": 0, "prediction": next(iter(record["predictions"]), "")}
    return {**record, **best} | {"alone": next(iter(record.get("alone", ())), "")}


def _references(run: Run) -> list[Reference]:
    """Returns the references of all texts, also of those that other hosts decode."""
    data = run.data
    if data.texts is not None:
        every: Iterable[Reference] = ((x, lambda text: text) for _, x in data.texts)
        if any(x is None for _, x in data.texts):
            raise UsageError(
                "the texts have no references to compare outputs with; give --input_file=FILE with "
                "input TAB reference on each line, or let `specdec decode` write the outputs"
            )
    else:
        every = references(tasks.get_task(data.task, data.split), data.split, data.lengths)
    if not (limited := list(itertools.islice(every, data.limit))):
        raise UsageError(f"split {data.split!r} has no examples; choose another one")
    return limited


def _metrics_of(run: Run, names: Sequence[str] | None) -> Sequence[Callable]:
    """Returns the named metrics, by default the task's; fails if a metric's library is missing."""
    of_texts = run.data.texts is not None
    metrics = [METRICS[name] for name in names or ()]
    if not (metrics or of_texts):
        metrics = list(tasks.get_task(run.data.task).metric_fns)
    if not metrics:
        what = "texts have" if of_texts else "task has"
        raise UsageError(f"the {what} no metrics; give one, --metric={' or '.join(METRICS)}")
    _signatures(metrics)
    return metrics


def _signatures(metrics: Iterable[Callable]) -> dict[str, str]:
    of_sums = (metric for metric in metrics if isinstance(metric, SumMetric))
    return {type(metric).__name__.lower(): metric.signature for metric in of_sums}


def _table(
    records: Iterable[JsonObject], texts: int, samples: int
) -> list[list[JsonObject]] | None:
    """Returns predictions as a table [samples][texts], None if one is missing."""
    table: list[list[Any]] = [[None] * texts for _ in range(samples)]
    for record in records:
        table[record["sample"]][record["index"]] = record
    return None if any(None in row for row in table) else table


def _way(plan: Plan) -> str:
    """Returns the key of a plan's outputs in a report: speculative, alone or early."""
    if plan.drafts:
        return "speculative"
    return "alone" if plan == plan.baseline() else "early"


def _merged(dictionaries: Iterable[dict[str, float]]) -> dict[str, float]:
    return {name: value for figures in dictionaries for name, value in figures.items()}


def _speculation(records: Sequence[JsonObject], prefix: int) -> dict[str, object]:
    tokens = [len(record["tokens"]) - prefix for record in records]
    calls = [record["calls"] for record in records]
    drafted, accepted = (
        np.array([count for record in records for count in record[name]])
        for name in ("drafted", "accepted")
    )
    return {
        "tokens": sum(tokens),
        "target_calls": sum(calls),
        "tokens_per_call": theory.block_efficiency(tokens, calls) if any(calls) else None,
        "alpha": theory.empirical_alpha(accepted, drafted) if drafted.any() else None,
    }


def _of_search(plan: AnyPlan, records: Sequence[JsonObject]) -> dict[str, object]:
    steps, calls = (sum(record[name] for record in records) for name in ("steps", "calls"))
    return {
        "plan": str(plan),
        "steps": steps,
        "target_calls": calls,
        "steps_per_call": steps / calls if calls else None,
    }


def lines(report: Report) -> Iterator[str]:
    """Yields the printed lines of a report: each metric, and how many outputs are identical."""
    ways, differences = report["metrics"], report.get("difference", {})
    for name in next(iter(ways.values())):
        # The loss of a time series is a ratio, and other metrics are percentages.
        places = 4 if any(0 < values[name] < 2 for values in ways.values()) else 2
        figures = [f"{way} {values[name]:.{places}f}" for way, values in ways.items()]
        if name in differences:
            shown = {key: f"{x:+.{places}f}" for key, x in differences[name].items()}
            figures.append("difference {value} [{low}, {high}]".format(**shown))
        yield f"{name}: {', '.join(figures)}"
    outputs = report["texts"] * report["samples"]
    if "identical" in report:
        yield f"identical outputs: {report['identical']} of {outputs}"
    if "same_by_chance" in report:
        yield f"NOT EXACT; the same by chance: {report['same_by_chance']} of {outputs}"
    for name, signature in report["signatures"].items():
        yield f"{name} by {signature}"


def _scalars(path: str, checkpoint: str) -> Callable[[Report], None]:
    """Returns a function that writes a report's metrics to a TensorBoard folder."""
    try:
        from clu import metric_writers
    except ImportError as error:
        missing = "--metrics_dir needs clu and tensorboard; pip install clu tensorboard"
        raise UsageError(missing) from error

    def write(report: Report) -> None:
        scalars = {
            f"{way}/{name}": value
            for way, values in report["metrics"].items()
            for name, value in values.items()
        }
        writer = metric_writers.SummaryWriter(path)
        writer.write_scalars(step_of(checkpoint), scalars)
        writer.close()

    return write


def step_of(checkpoint: str) -> int:
    """Returns the training step at the end of a path such as checkpoint_1000000; 0 if none."""
    ends = re.search(r"(?:^|[/_])(\d+)/*$", checkpoint)
    return int(ends[1]) if ends else 0
