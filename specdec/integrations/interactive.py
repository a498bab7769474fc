"""A pair of models for notebooks: texts in, texts out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, cast

import numpy as np

from specdec import tasks
from specdec.certificate import certifying
from specdec.common import demo, progress, terminal
from specdec.common.values import SEEDS
from specdec.integrations import arguments
from specdec.integrations.opened_pair import OpenedPair, over_devices
from specdec.integrations.pair import Search, beams_of
from specdec.integrations.shown_texts import Decoded, Explained
from specdec.measure import benchmarking
from specdec.texts.beam_texts import BeamText
from specdec.texts.beams import Beams
from specdec.texts.decoding_texts import Text
from specdec.texts.text_engine import TextEngine

T = TypeVar("T")


class _Settings(TypedDict):
    """The settings of one call; None for those of the model."""

    temperature: float | None
    max_length: int | None


class InteractiveModel(OpenedPair):
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
      progress: whether a terminal shows compiling and decoding.
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
        settings = _Settings(temperature=temperature, max_length=max_length)
        return [x.text for x in self.decode(texts, seed=seed, sample=sample, **settings)]

    @over_devices
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
        texts = arguments.texts_of(texts)
        decoded: list[Decoded] = []
        with progress.bar("decoding", len(texts), "text") as bar:
            for batch in self._batches((text, None) for text in texts):
                decoded += self._decode(batch, seed, engine, sample=sample)
                bar.update(len(batch.input_texts))
        return decoded

    def stream(
        self,
        text: str,
        *,
        seed: int = 0,
        sample: int = 0,
        temperature: float | None = None,
        max_length: int | None = None,
    ) -> Iterator[str]:
        """Yields the output for a text piece by piece, as the target's calls write it.

        All pieces together are the output of `predict`. No piece ends within a character. A loop
        that is left early ends the decoding. Over a mesh the whole output is one piece.

        Args:
          text: the input.
          seed: the seed of random draws.
          sample: the index of the sample, if the text has several.
          temperature: see `decode`.
          max_length: see `decode`.

        Raises:
          TaskError: the text is too long.
        """
        text = arguments.text_of("text", text)
        if self._engine.placement.mesh is not None:
            settings = _Settings(temperature=temperature, max_length=max_length)
            return iter(self.predict([text], seed=seed, sample=sample, **settings))
        engine = self._varied(temperature, max_length, rows=1)
        (batch,) = self._run([(text, None)], rows=1).batches()
        return self._pieces(engine, batch, *_drawn(seed, sample))

    @over_devices
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

    @over_devices
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

    @over_devices
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

    @over_devices
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

    @over_devices
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

    @over_devices
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

    @over_devices
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


def _drawn(seed: int, sample: int) -> tuple[int, int]:
    """Returns the seed and the sample, checked."""
    return arguments.seed_of(seed), arguments.integer("sample", sample, 0, SEEDS - 1)


def _beams(num_beams: int, search: Search) -> Beams:
    """Returns the settings of a search, checked; without a search for 0 beams."""
    arguments.check_search(search)
    return beams_of(arguments.integer("num_beams", num_beams, 0), search)
