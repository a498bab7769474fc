"""Transcribes sounds of any length with a Whisper, and makes texts of the transcripts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec import decoding, tasks
from specdec.checkpoints.transcription import Transcribed
from specdec.common.subtitles import TimedText
from specdec.common.values import UsageError, one_line
from specdec.engine import Engine
from specdec.plan import Plan
from specdec.texts.decoding_texts import Text
from specdec.texts.whole_sounds import WholeSounds, Window, stamped
from specdec.types import Array, Params


def has_timestamps(engine: Engine) -> bool:
    """Returns whether an engine is of a Whisper whose outputs have timestamps."""
    return isinstance(engine.settings, Transcribed) and bool(engine.settings.timestamps)


def frames_of(engine: Engine) -> int:
    """Returns the number of frames of a window, the longest input of a Whisper's engine."""
    return engine.plan.target.inputs_shape(1, 1).shape[-1]


class Transcriber:
    """Transcribes sounds of any length with a Whisper's engine, and has the methods of an engine.

    The engine decodes a sound that fits in one window, unless outputs have timestamps. Otherwise
    `WholeSounds` decodes it window by window; `several` says that there may be such sounds.
    """

    def __init__(self, engine: Engine, several: bool = False):
        self._engine = engine
        self._bins = engine.plan.target.inputs_shape(1, 1).shape[1]
        self._frames, self._has_stamps = frames_of(engine), has_timestamps(engine)
        self.several = several or self._has_stamps
        if self.several:
            _ = self._whole

    @functools.cached_property
    def _whole(self) -> WholeSounds:
        engine = self._engine
        if engine.prefix or engine.plan.reads_previous:
            what = "a decoder prefix" if engine.prefix else "previous outputs"
            raise UsageError(f"{what} is for sounds of one window; leave it out, or name parts")
        with one_line():
            return WholeSounds(stamped(engine))

    @property
    def plan(self) -> Plan:
        """The engine's plan."""
        return self._engine.plan

    @property
    def vocabulary(self) -> tasks.LoadedVocabulary:
        """The vocabulary of the transcripts."""
        return self._engine.vocabulary

    @property
    def prefix(self) -> tuple[int, ...]:
        """The token ids with which every output begins."""
        return self._engine.prefix

    @property
    def compile_seconds(self) -> float:
        """The seconds of all compilations so far."""
        of_windows = self._whole.compile_seconds if "_whole" in vars(self) else 0.0
        return of_windows + (0.0 if self._has_stamps else self._engine.compile_seconds)

    def alone(self) -> Transcriber:
        """Returns the transcriber that decodes with the target alone."""
        return Transcriber(self._engine.alone(), self.several)

    def suited(self, **how: object) -> Transcriber:
        """Returns this transcriber unchanged; other engines choose a program here."""
        del how
        return self

    def check(self, length: int, *, compile: bool = False) -> None:
        """Traces the engine's program for inputs of `length`; also compiles it if `compile`."""
        self._engine.check(length, compile=compile)

    def load(self) -> Params:
        """Reads the parameters, which otherwise happens at the first use, and returns them."""
        return self._engine.load()

    def features(self, name: str) -> np.ndarray:
        """Returns the log-mel features [mel_bins, F] float32 of the sound with this name."""
        return tasks.features_of(name, self._bins, self._frames)

    def outputs(
        self, work: Iterable[tuple[tasks.Batch, int]], *, seed: int = 0
    ) -> Iterator[tuple[list[Text], float]]:
        """Yields the result of `decode` for each (batch, sample), in order."""
        for batch, sample in work:
            yield self.decode(batch, seed=seed, sample=sample)

    def decode(
        self, batch: tasks.Batch, *, seed: int = 0, sample: int = 0
    ) -> tuple[list[Text], float]:
        """Returns the transcript of each sound of a batch, and the seconds without compilation."""
        sounds = batch.inputs
        assert isinstance(sounds, list)
        are_long = [self._has_stamps or x.shape[1] > self._frames for x in sounds]
        texts_by_row: dict[int, Text] = {}
        spent = 0.0
        for is_long in {*are_long}:
            rows = [row for row, value in enumerate(are_long) if value == is_long]
            index = [int(batch.index[row]) for row in rows]
            padded = jnp.array([*index, *[-1] * (self._engine.rows - len(index))])
            names = [(int(batch.index[row]), batch.input_texts[row]) for row in rows]
            keys = decoding.row_keys(seed, padded, sample)
            make = self._long if is_long else self._short
            with decoding.naming_texts(np.asarray(padded)):
                texts, seconds = make(names, [sounds[row] for row in rows], keys, sample)
            spent += seconds
            texts_by_row |= zip(rows, texts, strict=True)
        return [texts_by_row[row] for row in range(len(sounds))], spent

    def _short(self, names, sounds, keys: Array, sample: int) -> tuple[list[Text], float]:
        features = np.zeros([self._engine.rows, self._bins, self._frames], np.float32)
        features[: len(sounds)] = sounds
        output, seconds = self._engine.program.fetch(self._engine.params, keys, features)
        texts = []
        for row, (index, name) in enumerate(names):
            tokens = output.row(row).tokens
            log_probs = output.log_probs[row, : len(tokens)].tolist()
            more = self._of_text(index, name, sample, tokens, log_probs)
            texts.append(Text.of(output, row, **more))
        return texts, seconds

    def _long(self, names, sounds, keys: Array, sample: int) -> tuple[list[Text], float]:
        windows_of_sounds, seconds = self._whole.transcribe(sounds, keys)
        texts = []
        for (index, name), windows in zip(names, windows_of_sounds, strict=True):
            segments = [segment for window in windows for segment in window.segments]
            tokens = [token for segment in segments for token in segment.tokens]
            log_probs = [x for window in windows for x in window.log_probs]
            shown = tokens if self._has_stamps else self._words(tokens)
            fields = self._of_text(index, name, sample, shown, log_probs)
            parts = [
                TimedText(
                    start=round(segment.start, 2),
                    end=round(segment.end, 2),
                    text=self._text(self._words(segment.tokens), name),
                )
                for segment in segments
            ]
            texts.append(Text(tokens=tokens, **_calls(windows), **fields, segments=parts))
        return texts, seconds

    def _of_text(
        self, index: int, name: str, sample: int, shown: Sequence[int], log_probs: Sequence[float]
    ) -> dict[str, Any]:
        return {
            "index": index,
            "sample": sample,
            "input": name,
            "target": None,
            "prediction": self._text(shown, name),
            "log_probs": [round(value, 6) for value in log_probs],
        }

    def _words(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token < self._whole.zero]

    def _text(self, tokens: Sequence[int], name: str) -> str:
        return tasks.detokenize(self._engine.vocabulary, tokens, name)


def compared(text: Text, alone: Text | None) -> Text:
    """Returns a transcript with the fields `alone...` set to the target's transcript, if given."""
    if alone is None:
        return text
    more = {"alone": alone.prediction, "alone_tokens": alone.tokens, "alone_calls": alone.calls}
    return dataclasses.replace(text, **more)


def _calls(windows: Sequence[Window]) -> dict[str, Any]:
    """Returns the fields of `Text` about target calls, for all windows in order."""
    names = ("proposed", "drafted", "accepted", "sources", "depths")
    texts = [window.decoded for window in windows]
    calls = {name: [x for text in texts for x in getattr(text, name)] for name in names}
    return {**calls, "broken_drafts": sum(text.broken_drafts for text in texts)}
