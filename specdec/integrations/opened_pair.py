"""A pair of models that is open: its engine, and the variants of it that calls ask for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax

from specdec import checkpoints, tasks
from specdec.common import terminal
from specdec.common.decoded import DecodedText
from specdec.common.progress import shown_on
from specdec.decoding.program import Program
from specdec.drafters import PreviousOutput
from specdec.drafters.drafter import Drafter, drawing_with
from specdec.engine import Engine, NotExact, Placement, check_eight_bits, saved_vocabulary
from specdec.integrations import arguments
from specdec.integrations.pair import (
    Directories,
    Directory,
    buckets_below,
    drafter_of,
    weights_of,
)
from specdec.integrations.shown_texts import Decoded, ShownPair
from specdec.models.contract.inputs import check_room
from specdec.models.partitioning import Partitioner
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling, instead
from specdec.schedules import Fixed
from specdec.schedules.schedule import Schedule
from specdec.texts import explained
from specdec.texts.beams import NO_BEAMS, Beams
from specdec.texts.growing import Growing
from specdec.texts.measured_run import Run, Variant
from specdec.texts.texts import Data, TextList
from specdec.texts.transcripts import Transcriber
from specdec.types import DecodeOutput, SamplingRule
from specdec.verifiers import Block
from specdec.verifiers.decide import Verifier

F = TypeVar("F", bound=Callable)

GIVEN = "the given texts"  # the name of their split


def over_devices(method: F) -> F:
    """Returns a method of a pair that runs on the pair's mesh, and shows its progress."""

    @functools.wraps(method)
    def run(self, *arguments, **options):
        with self._on_devices():
            return method(self, *arguments, **options)

    return cast(F, run)


class OpenedPair(ShownPair):
    """The engine of a pair, with the programs and statistics that the pair's methods share.

    Its arguments are those of `InteractiveModel`.
    """

    def __init__(
        self,
        target: Directory,
        draft: Directories | None = None,
        *,
        drafter: Drafter | None = None,
        gamma: int = 4,
        schedule: Schedule | None = None,
        schedule_table: Directory | None = None,
        sampling: SamplingRule | None = None,
        verifier: Verifier | None = None,
        vocabulary: tasks.VocabularyDefinition | None = None,
        lengths: Mapping[str, int] = {"inputs": 512, "targets": 128},
        batch_size: int = 1,
        dtype: str | None = None,
        chat: bool = False,
        same_bits: bool = False,
        partitioner: Partitioner | None = None,
        prefix: str = "",
        progress: bool = True,
        **settings: Any,
    ):
        chosen = arguments.settings_of(settings)
        parts = {"drafter": drafter, "schedule": schedule, "verifier": verifier}
        arguments.check_parts(**parts, sampling=sampling, partitioner=partitioner)
        arguments.check_vocabulary(vocabulary)
        arguments.check_directories(target, draft, drafter, schedule_table)
        arguments.check_computing(dtype, chat=chat, same_bits=same_bits, progress=progress)
        lengths = arguments.lengths_of(lengths)
        batch_size = arguments.integer("batch_size", batch_size, 1)
        gamma = arguments.integer("gamma", gamma, 1)
        prefix = arguments.text_of("prefix", prefix)
        sampling = sampling or Greedy()
        of_draft = drafter_of(draft, drafter, dtype, sampling)
        schedule = None if of_draft is None else schedule or Fixed(gamma)
        weights = weights_of(target, draft, of_draft, schedule, schedule_table)
        model, longest = checkpoints.model_from(target, dtype), lengths["targets"]
        if chat:
            vocabulary = tasks.chatting(vocabulary or saved_vocabulary(target))
        verifier = None if of_draft is None else verifier or Block()
        of_plan: Any = of_draft, verifier, schedule, sampling, longest  # None without a drafter
        plan = Plan(model, *of_plan, stop_ids=(), same_bits=same_bits)
        check_room(plan.models(), lengths["inputs"], longest)
        check_eight_bits(plan, chosen.int8, chosen.int8_tokens)
        loaded = tasks.for_texts(vocabulary) if vocabulary else None
        devices = Placement(partitioner or Partitioner())
        with _naming_lossy():
            self._engine = Engine.open(
                plan, weights, loaded, devices, chosen, rows=batch_size, prefix=prefix
            )
        self._lengths, self._batch_size = lengths, batch_size
        self._shows_progress = progress
        # A trace for the shortest inputs finds parts that do not fit.
        with self._on_devices():
            self._engine.check(min([*buckets_below(lengths["inputs"]), lengths["inputs"]]))
            self._engine.load()
        self._previous: Sequence[int] = ()
        self._revisers: dict[int, Engine] = {}
        self._variants: dict[tuple[float | None, int | None, int], Engine] = {}
        self.reset()

    def _varied(
        self, temperature: float | None, max_length: int | None, rows: int | None = None
    ) -> Engine:
        """Returns the engine of a temperature, a length and rows, None for those of the model."""
        rows = rows or self._batch_size
        key = temperature, max_length, rows
        if key == (None, None, self._batch_size):
            return self._engine
        if key not in self._variants:
            plan = self._engine.plan
            parts: dict[str, Any] = {}
            if temperature is not None:
                value = arguments.temperature_of(temperature)
                rule = instead(plan.sampling, Sampling(value) if value else Greedy())
                parts["sampling"] = rule
                if plan.drafts:
                    parts["drafter"] = drawing_with(rule, plan.drafter)
            if max_length is not None:
                length = parts["max_length"] = arguments.integer("max_length", max_length, 1)
                check_room(plan.models(), self._lengths["inputs"], length)
                if plan.drafts and plan.longest_draft > (room := max(1, length - 1)):
                    parts["schedule"] = plan.schedule.up_to(room) or plan.schedule
            engine = dataclasses.replace(self._engine, rows=rows)
            self._variants[key] = engine.variant(**parts)
        return self._variants[key]

    def _revising(self, gamma: int) -> Engine:
        """Returns an engine that drafts from previous outputs."""
        if gamma not in self._revisers:
            plan = self._engine.plan
            verifier = plan.verifier if plan.drafts else Block()
            parts = {"drafter": PreviousOutput(), "verifier": verifier, "schedule": Fixed(gamma)}
            self._revisers[gamma] = self._engine.variant(**parts)
        return self._revisers[gamma]

    @functools.cached_property
    def _transcriber(self) -> Transcriber:
        return Transcriber(self._engine)

    @functools.cached_property
    def _replayer(self) -> Program:
        return explained.replayer(self._engine.plan)

    @contextlib.contextmanager
    def _on_devices(self) -> Iterator[None]:
        """Runs programs on the mesh, if there is one, and shows their progress on a terminal."""
        mesh = self._engine.placement.mesh
        with contextlib.ExitStack() as contexts:
            if mesh is not None:
                contexts.enter_context(jax.set_mesh(mesh))
            if self._shows_progress:
                contexts.enter_context(shown_on(sys.stderr))
            yield

    def _variant(
        self, engine: Engine, texts: Sequence[str], seed: int, beams: Beams = NO_BEAMS
    ) -> Variant:
        """Returns a run of an engine over texts, which are padded to the length of the longest."""
        seed = arguments.seed_of(seed)
        pairs = TextList((text, None) for text in arguments.texts_of(texts))
        if not pairs:
            raise ValueError("texts is empty; give one text or more")
        longest = max(batch.ids.shape[1] for batch in self._batches(pairs))
        lengths = {**self._lengths, "inputs": longest}
        data = Data(None, GIVEN, lengths, pairs, batch_size=engine.rows, seed=seed)
        run = Run(engine, data, lossy=not engine.plan.exact, beams=beams)
        return Variant("", run, f"# {engine.plan}\n")

    def reset(self) -> None:
        """Resets the statistics."""
        self.stats = terminal.Summary()
        self._compiled_before = self._compile_seconds()

    @functools.cached_property
    def _growing(self) -> Growing:
        return Growing(self._engine.vocabulary)

    def _pieces(self, engine: Engine, batch: tasks.Batch, seed: int, sample: int) -> Iterator[str]:
        """Yields the text of a batch of one row, piece by piece, and counts it at the end."""
        (source,) = batch.input_texts

        def grown() -> Iterator[Sequence[int]]:
            compiling, seconds, start = self._compile_seconds(), 0.0, time.perf_counter()
            output = None
            for output in engine.steps(batch, seed=seed, sample=sample):
                seconds += time.perf_counter() - start
                yield output.row(0).tokens
                start = time.perf_counter()
            assert output is not None, "there is one before the first target call"
            seconds -= self._compile_seconds() - compiling
            self._count([self._decoded(output, 0, source)], seconds)

        return self._growing.pieces(grown(), source)

    def _text_of(self, tokens: Sequence[int], source: str) -> str:
        return tasks.detokenize(self._engine.vocabulary, tokens, source)

    def _batches(self, pairs: Iterable[tuple[str, str | None]]) -> Iterator[tasks.Batch]:
        return self._run(pairs).batches()

    def _run(
        self,
        pairs: Iterable[tuple[str, str | None]],
        beams: Beams = NO_BEAMS,
        rows: int | None = None,
    ) -> Run:
        """Returns a run over texts that are padded to the lengths of this model's programs."""
        lengths, rows = self._lengths, rows or self._batch_size
        texts, widths = TextList(pairs), buckets_below(lengths["inputs"])
        data = Data(None, GIVEN, lengths, texts, batch_size=rows, buckets=widths)
        return Run(self._engine, data, beams=beams)

    def _decode(
        self, batch: tasks.Batch, seed: int, engine: Engine | None = None, sample: int = 0
    ) -> list[Decoded]:
        engine = engine or self._engine
        output, seconds = engine.decode(batch, seed=seed, sample=sample)
        texts = [self._decoded(output, row, text) for row, text in enumerate(batch.input_texts)]
        self._count(texts, seconds)
        return texts

    def _decoded(self, output: DecodeOutput, row: int, source: str) -> Decoded:
        log_prob = float(output.log_probs[row].sum())
        shown = self._text_of(output.row(row).tokens, source)
        return Decoded.of(output, row, input=source, text=shown, log_prob=log_prob)

    def _count(self, texts: Iterable[DecodedText], seconds: float) -> None:
        """Adds texts, and the seconds that they took, to the statistics."""
        self.stats.seconds += seconds
        self.stats.compile_seconds = self._compile_seconds() - self._compiled_before
        for text in texts:
            text.count_in(self.stats, len(self._engine.prefix))

    def _compile_seconds(self) -> float:
        decoder = vars(self).get("_transcriber", self._engine)  # the transcriber counts its own
        engines = [*self._revisers.values(), *self._variants.values()]
        return decoder.compile_seconds + sum(engine.compile_seconds for engine in engines)


@contextlib.contextmanager
def _naming_lossy() -> Iterator[None]:
    """Raises ValueError for a pair that is not exact, with the argument that allows it."""
    try:
        yield
    except NotExact as error:
        raise ValueError(
            f"{error} does not keep the target's distribution; give lossy=True to have it"
        ) from error
