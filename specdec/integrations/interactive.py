"""A pair of models for notebooks: texts in, texts out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast

import jax
import numpy as np

from specdec import checkpoints, tasks
from specdec.certificate import certifying
from specdec.common import demo, terminal
from specdec.common.decoded import DecodedText
from specdec.common.values import SEEDS
from specdec.decoding.program import Program
from specdec.drafters import Autoregressive, PreviousOutput
from specdec.drafters.drafter import Drafter, drawing_with
from specdec.engine import Engine, NotExact, Placement, check_eight_bits, saved_vocabulary
from specdec.integrations import arguments
from specdec.integrations.pair import (
    Directories,
    Directory,
    Search,
    beams_of,
    buckets_below,
    weights_of,
)
from specdec.integrations.shown_texts import Decoded, Explained, ShownPair
from specdec.measure import benchmarking
from specdec.models.contract.inputs import check_room
from specdec.models.partitioning import Partitioner
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling, instead
from specdec.schedules import Fixed
from specdec.schedules.schedule import Schedule
from specdec.texts import explained
from specdec.texts.beam_texts import BeamText
from specdec.texts.beams import NO_BEAMS, Beams
from specdec.texts.decoding_texts import Text
from specdec.texts.measured_run import Run, Variant
from specdec.texts.text_engine import TextEngine
from specdec.texts.texts import Data, TextList
from specdec.texts.transcripts import Transcriber
from specdec.types import SamplingRule
from specdec.verifiers import Block
from specdec.verifiers.decide import Verifier

T = TypeVar("T")
F = TypeVar("F", bound=Callable)

GIVEN = "the given texts"  # the name of their split


def _over_devices(method: F) -> F:
    """Returns a method of `InteractiveModel` that runs on its mesh, if it has one."""

    @functools.wraps(method)
    def run(self, *arguments, **options):
        with self._on_devices():
            return method(self, *arguments, **options)

    return cast(F, run)


class InteractiveModel(ShownPair):
    """A target, a drafter and a vocabulary that turn input texts into output texts.

    Inputs are padded to the next power of two, and one program is compiled for each such length.
    Outputs equal those of `specdec decode` with the same settings and seed. `bench` times the pair
    against the target alone, and `verify` certifies that the output does not change.

    Args:
      target: the directory of the target's checkpoint.
      draft: the directory of the drafter's parameters, or a dict of directories by role. Without
        `draft` and `drafter`, the target decodes alone.
      drafter: any drafter; None for `Autoregressive` with the draft.
      gamma: draft tokens per target call.
      schedule: decides how many tokens to draft, instead of `gamma`.
      schedule_table: the folder of the schedule's table, if it has one.
      sampling: as in `Plan`; None for `Greedy()`.
      verifier: as in `Plan`; None for `Block()`, which is exact with any sampling.
      vocabulary: `tasks.SentencePiece(path)` or `tasks.Bytes()`; None for the one saved with the
        target.
      lengths: the longest 'inputs' and 'targets', in tokens.
      batch_size: texts that are decoded together.
      dtype: 'float32' or 'bfloat16' to compute in; None for the checkpoints' own.
      chat: whether each input is a user's message, for the target's own chat template.
      same_bits: whether outputs must equal the target's own in bfloat16 too, see `Plan`.
      partitioner: how the models are divided over devices; None for one device.
      prefix: the text that every output begins with.
      **settings: `lossy`, `int8`, `int8_tokens` and `generation_settings`, see `engine.Settings`.

    Raises:
      CheckpointError, TaskError, ValueError: before any parameter is read, if something does not
        exist, cannot be read, or does not fit the rest.

    Example:

    >>> model = InteractiveModel.demo()  # or InteractiveModel(TARGET, DRAFT, gamma=5)
    >>> (output,) = model.predict(["translate English to German: The cat sleeps."])
    >>> model.stats.texts
    1
    >>> model.explain("translate English to German: The cat sleeps.").text.prediction == output
    True
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
        **settings: Any,
    ):
        chosen = arguments.settings_of(settings)
        parts = {"drafter": drafter, "schedule": schedule, "verifier": verifier}
        arguments.check_parts(**parts, sampling=sampling, partitioner=partitioner)
        arguments.check_vocabulary(vocabulary)
        arguments.check_directories(target, draft, drafter, schedule_table)
        arguments.check_computing(dtype, chat, same_bits)
        lengths = arguments.lengths_of(lengths)
        batch_size = arguments.integer("batch_size", batch_size, 1)
        gamma = arguments.integer("gamma", gamma, 1)
        prefix = arguments.text_of("prefix", prefix)
        sampling = sampling or Greedy()
        if drafter is None and draft is not None:
            path = draft["draft"] if isinstance(draft, Mapping) else draft
            drafter = Autoregressive(checkpoints.model_from(path, dtype), sampling)
        if drafter is None:
            verifier = schedule = None
        else:
            verifier, schedule = verifier or Block(), schedule or Fixed(gamma)
        weights = weights_of(target, draft, drafter, schedule, schedule_table)
        model, longest = checkpoints.model_from(target, dtype), lengths["targets"]
        if chat:
            vocabulary = tasks.chatting(vocabulary or saved_vocabulary(target))
        of_plan: Any = drafter, verifier, schedule, sampling, longest  # some None without a drafter
        plan = Plan(model, *of_plan, stop_ids=(), same_bits=same_bits)
        check_room(plan.models(), lengths["inputs"], longest)
        check_eight_bits(plan, chosen.int8, chosen.int8_tokens)
        loaded = tasks.for_texts(vocabulary) if vocabulary else None
        devices = Placement(partitioner or Partitioner())
        try:
            self._engine = Engine.open(
                plan, weights, loaded, devices, chosen, rows=batch_size, prefix=prefix
            )
        except NotExact as error:
            raise ValueError(
                f"{error} does not keep the target's distribution; give lossy=True to have it"
            ) from error
        self._lengths, self._batch_size = lengths, batch_size
        # A trace for the shortest inputs finds parts that do not fit.
        with self._on_devices():
            self._engine.check(min([*buckets_below(lengths["inputs"]), lengths["inputs"]]))
            self._engine.load()
        self._previous: Sequence[int] = ()
        self._revisers: dict[int, Engine] = {}
        self._variants: dict[tuple[float | None, int | None], Engine] = {}
        self.reset()

    @classmethod
    def demo(cls, **options: Any) -> InteractiveModel:
        """Returns the pair that ships with the project.

        Args:
          **options: arguments of the class.
        """
        defaults = {"gamma": 7, "lengths": {"inputs": 144, "targets": 48}}
        return cls(demo.path("target"), demo.path("draft"), **defaults | options)

    def predict(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        sample: int = 0,
        temperature: float | None = None,
        max_length: int | None = None,
    ) -> list[str]:
        """Returns the output for each text.

        Args:
          texts: the inputs.
          seed: the seed of random draws.
          sample: the index of the sample, if each text has several.
          temperature: see `decode`.
          max_length: see `decode`.
        """
        options: dict[str, Any] = {"temperature": temperature, "max_length": max_length}
        return [x.text for x in self.decode(texts, seed=seed, sample=sample, **options)]

    @_over_devices
    def decode(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        sample: int = 0,
        temperature: float | None = None,
        max_length: int | None = None,
    ) -> list[Decoded]:
        """Returns the output for each text, with its statistics.

        Args:
          texts: the inputs.
          seed: the seed of random draws. A sampled output depends only on the seed and on its index
            among the texts.
          sample: the index of the sample, if each text has several.
          temperature: the temperature of this call, 0 for greedy; None for the model's sampling.
            The parameters are read once, whatever is given.
          max_length: the longest output of this call, in tokens; None for the model's.

        Raises:
          TaskError: a text is too long.
          ValueError: the drafter or the verifier cannot decode at this temperature or length.
        """
        engine = self._varied(temperature, max_length)
        seed, sample = _drawn(seed, sample)
        batches = self._batches((text, None) for text in arguments.texts_of(texts))
        return [x for batch in batches for x in self._decode(batch, seed, engine, sample=sample)]

    def _varied(self, temperature: float | None, max_length: int | None) -> Engine:
        """Returns the engine of a temperature and a length, None for those of the model."""
        key = temperature, max_length
        if key == (None, None):
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
            self._variants[key] = self._engine.variant(**parts)
        return self._variants[key]

    @_over_devices
    def transcribe(self, files: Sequence[str], *, seed: int = 0, sample: int = 0) -> list[Text]:
        """Returns the transcripts of sounds of any length, by a Whisper.

        They equal those of `specdec decode`. A sound that the model reads in several windows has
        `segments` with times. `specdec.common.subtitles.subtitles` converts them to SRT and WebVTT.

        Args:
          files: the paths of sound files. The model needs generation_settings=
            `checkpoints.Transcribed()`; with its timestamps=True each sound has segments.
          seed: the seed of random draws.
          sample: the index of the sample, if each sound has several.

        Raises:
          TaskError: a file cannot be read.
          UsageError: the model cannot read several windows.
          ValueError: the model reads no sound.
        """
        if not tasks.is_sound(self._engine.vocabulary):
            raise ValueError("the target reads texts; give a Whisper, or the texts to `decode`")
        seed, sample = _drawn(seed, sample)
        pairs = ((file, None) for file in arguments.files_of(files))
        source = dataclasses.replace(self._run(pairs), transcriber=self._transcriber).source()
        transcripts = []
        for batch in source:
            texts, seconds = self._transcriber.decode(batch, seed=seed, sample=sample)
            self._count(texts, seconds)
            transcripts += texts
        return transcripts

    @functools.cached_property
    def _transcriber(self) -> Transcriber:
        return Transcriber(self._engine)

    @_over_devices
    def revise(
        self, text: str, *, previous: str | None = None, gamma: int = 16, seed: int = 0
    ) -> Decoded:
        """Returns the output for a revised text, drafted from the output for its last version.

        The output equals that of `decode`.

        Args:
          text: the input.
          previous: the output for the last version of the text; None for the result of the last
            `revise`. '' for a new text.
          gamma: the greatest number of draft tokens per target call.
          seed: the seed of random draws.

        Raises:
          TaskError: the text is too long.
        """
        text, seed = arguments.text_of("text", text), arguments.seed_of(seed)
        if previous is not None:
            previous = arguments.text_of("previous", previous)
        engine = self._revising(arguments.integer("gamma", gamma, 1))
        (batch,) = self._batches([(text, None)])
        if previous is not None:
            ids = engine.vocabulary.encode(previous)
            self._previous = [*ids, engine.vocabulary.eos_id] if previous else []
        batch = batch.revised([self._previous], engine.plan.max_length)
        (revised,) = self._decode(batch, seed, engine)
        self._previous = revised.tokens
        return revised

    def _revising(self, gamma: int) -> Engine:
        """Returns an engine that drafts from previous outputs."""
        if gamma not in self._revisers:
            plan = self._engine.plan
            verifier = plan.verifier if plan.drafts else Block()
            parts = {"drafter": PreviousOutput(), "verifier": verifier, "schedule": Fixed(gamma)}
            self._revisers[gamma] = self._engine.variant(**parts)
        return self._revisers[gamma]

    @_over_devices
    def beams(
        self, texts: Sequence[str], num_beams: int = 4, **search: Unpack[Search]
    ) -> list[BeamText]:
        """Returns the likeliest outputs for each text, by beam search.

        The beams equal those of the library that `rule` names. A drafter of class
        `Autoregressive` makes the search faster without changing them.

        Args:
          texts: the inputs.
          num_beams: w, the beams of the search.
          **search: the settings of the search. `num_return` is the number of beams of each text,
            the best first; all by default. `rule` is `T5XBeams` or `HuggingFaceBeams` of
            `decoding.beam_rules`; T5X's by default. `draft_beams` is the number of beams of the
            draft; twice `num_beams` by default. `draft_steps` is the number of steps that the
            draft looks ahead; 2 by default.

        Raises:
          ValueError: the model samples, or has another drafter.
          TaskError: a text is too long.
        """
        num_beams = arguments.integer("num_beams", num_beams, 1)
        arguments.check_search(search)
        beams = beams_of(num_beams, {"num_return": num_beams, **search})
        run = self._run(((text, None) for text in arguments.texts_of(texts)), beams)
        decoded: Iterator[Any] = TextEngine(run, beams.engine(self._engine)).decode(run.source())
        return list(decoded)

    @_over_devices
    def score(self, inputs: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Returns the target's log-probability of each of `targets`, EOS included, in nats.

        Args:
          inputs: the input texts.
          targets: an output for each of them.

        Raises:
          TaskError: a text is too long.
        """
        scores = []
        for batch in self._batches(arguments.pairs_of(inputs, targets)):
            log_probs = self._engine.score(batch)
            scores += np.sum(log_probs, axis=1)[: len(batch.input_texts)].tolist()
        return scores

    def evaluate(
        self,
        pairs: Iterable[tuple[str, str]],
        metric_fns: Sequence[Callable[[list[str], list[str]], Mapping[str, T]]] = (tasks.bleu,),
        *,
        seed: int = 0,
    ) -> dict[str, T]:
        """Returns metrics of the outputs for the inputs of `pairs`.

        Args:
          pairs: (input, target) texts.
          metric_fns: in seqio's form, (targets, predictions) -> {name: value}.
          seed: the seed of random draws.

        Raises:
          ValueError: there are no pairs.
        """
        if not (pairs := list(pairs)):
            raise ValueError("pairs is empty; give one (input, target) or more")
        inputs, targets = map(list, zip(*pairs, strict=True))
        predictions = self.predict(inputs, seed=seed)
        metrics = (metric(targets, predictions) for metric in metric_fns)
        return dict(itertools.chain.from_iterable(values.items() for values in metrics))

    def paint(self, decoded: Decoded) -> str:
        """Returns the text with terminal colours that show which model wrote each word.

        `terminal.legend` explains the colours.
        """
        row = decoded.tokens, decoded.proposed, decoded.drafted, decoded.accepted
        text_of = functools.partial(self._text_of, source=decoded.input)
        return terminal.paint(terminal.pieces(terminal.origins(*row), text_of))

    @_over_devices
    def bench(
        self,
        texts: Sequence[str],
        *,
        repeats: int = 3,
        seed: int = 0,
        num_beams: int = 0,
        **search: Unpack[Search],
    ) -> benchmarking.Measured:
        """Times the pair and the target alone, alternating, text by text, like `specdec bench`.

        Args:
          texts: the inputs; all are padded to the length of the longest.
          repeats: the number of runs of each text.
          seed: the seed of random draws.
          num_beams: the number of beams of a search, drafted and plain; 0 for no search.
          **search: the settings of the search, see `beams`; `num_return` is 1 by default.

        Raises:
          ValueError: the model has no drafter or one that drafts no beams, or there is no text.
          TaskError: a text is too long.
        """
        if not self._engine.plan.drafts:
            raise ValueError("the target decodes alone; give a draft or a drafter to measure")
        repeats = arguments.integer("repeats", repeats, 1)
        engine = dataclasses.replace(self._engine, rows=1).variant()
        variant = self._variant(engine, texts, seed, _beams(num_beams, search))
        (measured,) = benchmarking.Benchmark.of([(variant, None)]).measure(repeats)
        return measured

    @_over_devices
    def verify(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        num_beams: int = 0,
        **search: Unpack[Search],
    ) -> certifying.Certificate:
        """Certifies that the pair decodes what the target alone would, or finds the same beams.

        It runs the eleven checks of `specdec verify`, or the five of beams, which take minutes. The
        names of the checks appear on stderr.

        Args:
          texts: the inputs.
          seed: the seed of random draws.
          num_beams: the number of beams of a search; 0 for no search.
          **search: the settings of the search, see `beams`; `num_return` is 1 by default.

        Raises:
          ValueError: the model has no drafter or one that drafts no beams, or there is no text.
          TaskError: a text is too long.
        """

        def started(name: str) -> None:
            print(f"checking {name} ...", file=sys.stderr, flush=True)

        variant = self._variant(self._engine, texts, seed, _beams(num_beams, search))
        return certifying.certify(variant, lambda line: None, started)

    @_over_devices
    def explain(self, text: str, *, seed: int = 0) -> Explained:
        """Decodes a text, and returns which words each target call was given and kept.

        Args:
          text: the input.
          seed: the seed of random draws.

        Raises:
          TaskError: the text is too long.
        """
        run = self._variant(self._engine, [arguments.text_of("text", text)], seed).run
        engine = TextEngine(run, self._engine, again=self._replayer)
        (decoded,) = engine.decode(run.source())
        return Explained(cast(Text, decoded))

    @functools.cached_property
    def _replayer(self) -> Program:
        return explained.replayer(self._engine.plan)

    def _on_devices(self) -> contextlib.AbstractContextManager:
        """Returns the context in which the programs of the model run."""
        mesh = self._engine.placement.mesh
        return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)

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

    def _text_of(self, tokens: Sequence[int], source: str) -> str:
        return tasks.detokenize(self._engine.vocabulary, tokens, source)

    def _batches(self, pairs: Iterable[tuple[str, str | None]]) -> Iterator[tasks.Batch]:
        return self._run(pairs).batches()

    def _run(self, pairs: Iterable[tuple[str, str | None]], beams: Beams = NO_BEAMS) -> Run:
        """Returns a run over texts that are padded to the lengths of this model's programs."""
        lengths, rows = self._lengths, self._batch_size
        texts, widths = TextList(pairs), buckets_below(lengths["inputs"])
        data = Data(None, GIVEN, lengths, texts, batch_size=rows, buckets=widths)
        return Run(self._engine, data, beams=beams)

    def _decode(
        self, batch: tasks.Batch, seed: int, engine: Engine | None = None, sample: int = 0
    ) -> list[Decoded]:
        engine = engine or self._engine
        output, seconds = engine.decode(batch, seed=seed, sample=sample)
        texts = []
        for index, text in enumerate(batch.input_texts):
            log_prob = float(output.log_probs[index].sum())
            shown = self._text_of(output.row(index).tokens, text)
            texts.append(Decoded.of(output, index, input=text, text=shown, log_prob=log_prob))
        self._count(texts, seconds)
        return texts

    def _count(self, texts: Iterable[DecodedText], seconds: float) -> None:
        """Adds texts, and the seconds that they took, to the statistics."""
        self.stats.seconds += seconds
        self.stats.compile_seconds = self._compile_seconds() - self._compiled_before
        for text in texts:
            text.count_in(self.stats, len(self._engine.prefix))

    def _compile_seconds(self) -> float:
        decoder = vars(self).get("_transcriber", self._engine)  # the transcriber counts its own
        return decoder.compile_seconds


def _drawn(seed: int, sample: int) -> tuple[int, int]:
    """Returns the seed and the sample, checked."""
    return arguments.seed_of(seed), arguments.integer("sample", sample, 0, SEEDS - 1)


def _beams(num_beams: int, search: Search) -> Beams:
    """Returns the settings of a search, checked; without a search for 0 beams."""
    arguments.check_search(search)
    return beams_of(arguments.integer("num_beams", num_beams, 0), search)
