"""Decodes the texts of a run with the program that its settings require."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import jax

from specdec import tasks
from specdec.common import hosts, progress
from specdec.common.terminal import Summary
from specdec.common.values import one_line
from specdec.decoding import Decided
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.decoding.program import Program
from specdec.engine import Engine
from specdec.engine.beam_engine import BeamEngine
from specdec.texts.beam_texts import BeamSummary, BeamText
from specdec.texts.decoding_texts import Text
from specdec.texts.explained import ExplainedBatch, replayer
from specdec.texts.measured_run import Run
from specdec.texts.sources import Source
from specdec.texts.transcripts import Transcriber, compared
from specdec.types import DecodeOutput, PyTree

AnyText: TypeAlias = Text | BeamText
T = TypeVar("T")
SummaryT = TypeVar("SummaryT", bound=Summary | BeamSummary)


class Watch(Protocol):
    """A display of one output at a time while it is decoded."""

    def begin(self, text: str) -> None:
        """Shows the input of the next output."""

    def grown(self, output: DecodeOutput) -> None:
        """Shows the output so far, of one row, after each target call."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextEngine:
    """Decodes the texts of a source, and sums up their figures.

    `TextEngine.open` chooses the program: batches or refilled rows, one sample or several, step by
    step, a beam search, or sounds window by window. Programs are compiled at their first use.
    """

    run: Run
    engine: Engine | BeamEngine | Transcriber
    alone: Engine | BeamEngine | Transcriber | None = None  # the target alone, if the run compares
    again: Program | None = None  # the program of `explained.replayer`, to explain texts
    watch: Watch | None = None  # displays each output while it is decoded
    summary: Summary | BeamSummary = dataclasses.field(init=False)  # of the texts so far

    def __post_init__(self):
        run, compares = self.run, self.alone is not None
        summary = BeamSummary(compared=compares) if run.beams else Summary(exact=run.plan.exact)
        object.__setattr__(self, "summary", summary)

    @classmethod
    def open(
        cls,
        run: Run,
        *,
        length: int | None = None,
        watch: Watch | None = None,
        explained: bool = False,
    ) -> TextEngine:
        """Opens a run, and checks that its programs can be traced.

        If `length` is given, compiles for inputs of that many tokens. With `explained`, p and q of
        all tokens are computed as well."""
        data, decoder = run.data, run.decoder
        widths = data.widths if data.refill else ()
        how = {"samples": data.num_samples, "together": data.samples_together, "widths": widths}
        with one_line():
            engine = decoder.suited(**how, watch=None if watch is None else watch.grown)
            engine.check(length or data.lengths["inputs"], compile=length is not None)
            alone = engine.alone().suited(**how) if run.compare else None
        again = None
        if explained:
            mesh, prefix = run.placement.mesh, run.engine.given_prefix
            again = replayer(run.plan, mesh=mesh, prefix=prefix)
        ways = [x.way for x in (engine, alone) if isinstance(x, Engine)]
        if ways:
            count = sum(way.programs for way in ways) + (again is not None)
            exactly = not data.buckets and not data.refill
            progress.expect_programs(len(data.widths) * count, exactly=exactly)
        return cls(run, engine, alone, again, watch)

    @property
    def plan(self) -> AnyPlan:
        """The plan of the engine that decodes: a `Plan`, or the `BeamPlan` of a beam search."""
        return self.engine.plan

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Reads the parameters on entry, and prints the summary on stderr on exit.

        Of several hosts the first one prints the figures of all; an interrupted host prints its
        own.
        """
        self.engine.load()
        try:
            yield
        except BaseException:
            self._print(self.summary)
            raise
        feeds = self.run.placement.share().first  # others decode the rows of another host
        figures = hosts.exchanged(self.summary if feeds else None)
        if hosts.is_first():
            self._print(total([summary for summary in figures if summary is not None]))

    def _print(self, summary: Summary | BeamSummary) -> None:
        if summary.texts:
            print(self.plan, *summary.lines(progress.spent()), sep="\n", file=sys.stderr)

    def decode(
        self, source: Source, *, skip: int = 0, everywhere: bool = False
    ) -> Iterator[AnyText]:
        """Yields the decoded texts of a source by batch, and within a batch by sample.

        If rows are refilled, texts of later batches are decoded before a batch is finished. The
        first `skip` texts are left out. With `everywhere`, the first host yields all hosts' texts.
        """
        batches: Iterable[Iterable[AnyText]] = self._batches(source, skip)
        if everywhere and jax.process_count() > 1:
            feeds = self.run.placement.share().first
            order = operator.attrgetter("sample", "index")
            batches = gathered(map(list, batches), feeds=feeds, order=order)
        summary: Any = self.summary
        for text in itertools.chain.from_iterable(batches):
            text.count_in(summary, len(self.engine.prefix))
            yield text

    def _batches(self, source: Source, skip: int) -> Iterator[Iterator[AnyText]]:
        samples, seed = range(self.run.data.num_samples), self.run.data.seed
        work = _work(self._shown(source), samples, skip)
        work, for_ours, for_alone = itertools.tee(work, 3)
        outputs = self.engine.outputs(((x, sample) for x, sample, _ in for_ours), seed=seed)
        baselines = iter(())
        if self.alone is not None:
            work_alone = ((x, sample) for x, sample, _ in for_alone)
            baselines = self.alone.outputs(work_alone, seed=seed)
        else:
            del for_alone  # because it would keep all batches in memory
        stage = "searching" if self.run.beams else "decoding"
        for batch, sample, rows in work:
            with progress.stage(stage):
                output, seconds = next(outputs)
            self.summary.seconds += seconds
            explained = None
            if self.again is not None:
                explained = self._explained(batch, sample, cast(DecodeOutput, output), seconds)
            baseline = None
            if self.alone is not None:
                with progress.stage("the target alone"):
                    baseline, seconds = next(baselines)
                self.summary.baseline_seconds += seconds
            engines = [engine for engine in (self.engine, self.alone) if engine is not None]
            spent = sum(engine.compile_seconds for engine in engines)
            spent += self.again.seconds if self.again is not None else 0
            self.summary.compile_seconds = spent
            yield self._texts(source, batch, sample, rows, (output, baseline), explained)

    def _texts(
        self,
        source: Source,
        batch: tasks.Batch,
        sample: int,
        rows: Iterable[int],
        outputs: tuple[PyTree, PyTree],
        explained: ExplainedBatch | None,
    ) -> Iterator[AnyText]:
        """Yields the decoded texts of the given rows, after passing each to `source.answered`."""
        vocabulary = self.engine.vocabulary
        for row in rows:
            if self.run.beams:
                count = self.run.beams.num_return
                text = BeamText.row(batch, row, *outputs, vocabulary, count)
            elif self.run.transcriber is not None:
                text = compared(*(output and output[row] for output in outputs))
            else:
                more: dict[str, Any] = {"sample": sample}
                if explained is not None:
                    more["explained"] = explained.explained(row, batch.input_texts[row])
                text = Text.row(batch, row, *outputs, vocabulary, **more)
                source.answered(text)
            yield text

    def _shown(self, source: Source) -> Iterator[tasks.Batch]:
        """Yields the source's batches, and shows the input of each on the display, if any."""
        for batch in source:
            if self.watch is not None:
                self.watch.begin(batch.input_texts[0])
            yield batch

    def _explained(
        self, batch: tasks.Batch, sample: int, output: DecodeOutput, seconds: float
    ) -> ExplainedBatch:
        """Returns a decoded batch with the probabilities p and q, from a replay of its calls."""
        engine, again, plan = self.engine, self.again, self.plan
        assert isinstance(engine, Engine) and again is not None
        assert not isinstance(plan, BeamPlan), "beams are not explained"
        trace, keys = output.trace, engine.keys(batch, self.run.data.seed, sample)
        decided = Decided(output.tokens, trace.proposed, trace.drafted, trace.accepted)
        with progress.stage("explaining"):
            replay, _ = again.fetch(engine.params, keys, (engine.inputs(batch), decided))
        prefix = len(engine.prefix)
        return ExplainedBatch(plan, engine.text_of, prefix, output, replay, seconds)


def total(summaries: Sequence[SummaryT]) -> SummaryT:
    """Returns the figures of several hosts that worked at the same time.

    Counts are added; seconds are those of the slowest host.
    """
    first, *others = summaries
    figures: dict[str, object] = {}
    for field in dataclasses.fields(first):
        values = [getattr(summary, field.name) for summary in summaries]
        if isinstance(values[0], bool):
            figures[field.name] = values[0]
        elif isinstance(values[0], float):
            figures[field.name] = max(values)
        else:
            figures[field.name] = functools.reduce(operator.add, values)
    return dataclasses.replace(first, **figures) if others else first


def _work(
    batches: Iterable[tasks.Batch], samples: Iterable[int], skip: int
) -> Iterator[tuple[tasks.Batch, int, range]]:
    """Yields (batch, sample, rows to decode) without the rows of the first `skip` texts."""
    for batch, sample in ((batch, sample) for batch in batches for sample in samples):
        rows = range(len(batch.input_texts))
        if rows[skip:] or not rows:
            yield batch, sample, rows[skip:]
        skip = max(0, skip - len(rows))


def gathered(
    batches: Iterable[list[T]], *, feeds: bool, order: Callable[[T], tuple[int, ...]]
) -> Iterator[list[T]]:
    """Yields the texts of each batch of all hosts on the first host; nothing on other hosts."""
    for texts in batches:
        received = hosts.exchanged(texts if feeds else [])
        if hosts.is_first():
            yield sorted(itertools.chain.from_iterable(received), key=order)
