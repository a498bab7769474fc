"""Transcripts of sounds of any length."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec import decoding, tasks
from specdec.checkpoints.transcription import Transcribed
from specdec.common import progress, terminal
from specdec.common.values import UsageError
from specdec.engine import Engine, WholeSounds, Window
from specdec.instrument.decoding_texts import Text
from specdec.types import Array


def has_timestamps(engine: Engine) -> bool:
    """Returns whether the outputs of an engine of a Whisper have timestamps."""
    return isinstance(engine.settings, Transcribed) and engine.settings.timestamps


class Transcriber:
    """Transcribes sounds with an engine of a Whisper.

    A sound that fits a window is decoded as by the engine, unless its outputs have timestamps. All
    others are decoded as by `WholeSounds`.

    Args:
      engine: decodes.
      several: whether some sounds are known to need several windows.

    Raises:
      UsageError: the engine cannot decode several windows.
    """

    def __init__(self, engine: Engine, several: bool = False):
        self._engine = engine
        _, self._bins, self._frames = engine.plan.target.inputs_shape(1, 1).shape
        self._has_stamps = has_timestamps(engine)
        if several or self._has_stamps:
            _ = self._whole

    @functools.cached_property
    def _whole(self) -> WholeSounds:
        engine = self._engine
        if engine.prefix or engine.plan.reads_previous:
            what = "a decoder prefix" if engine.prefix else "previous outputs"
            raise UsageError(f"{what} is for sounds of one window; leave it out, or name parts")
        try:
            return WholeSounds(engine.stamped())
        except ValueError as error:
            raise UsageError(str(error)) from error

    @property
    def compile_seconds(self) -> float:
        """The time of all compilations so far."""
        whole = self._whole.compile_seconds if "_whole" in vars(self) else 0.0
        return whole + (0.0 if self._has_stamps else self._engine.decoder.seconds)

    def texts(
        self,
        names: Iterable[str],
        summary: terminal.Summary,
        *,
        seed: int = 0,
        samples: Iterable[int] = (0,),
        alone: Transcriber | None = None,
    ) -> Iterator[Text]:
        """Yields the transcripts of sounds, in order, and adds up the figures.

        Args:
          names: the texts that name the sounds.
          summary: gets the figures.
          seed: the seed of all random draws.
          samples: the numbers of the outputs for each sound.
          alone: transcribes with the target alone, to compare; None for no comparison.

        Raises:
          TaskError: a sound cannot be read.
        """
        numbered, samples = enumerate(names), tuple(samples)
        while group := list(itertools.islice(numbered, self._engine.rows)):
            given = [tasks.features_of(name, self._bins, self._frames) for _, name in group]
            for sample in samples:
                with progress.stage("decoding"):
                    found, seconds = self._group(group, given, seed, sample)
                summary.seconds += seconds
                if alone:
                    with progress.stage("the target alone"):
                        others, seconds = alone._group(group, given, seed, sample)
                    summary.baseline_seconds += seconds
                    for row, other in enumerate(others):
                        summary.baseline_calls += other.calls
                        summary.identical += found[row].tokens == other.tokens
                        more = {"alone": other.prediction, "alone_tokens": other.tokens}
                        found[row] = dataclasses.replace(found[row], **more)
                summary.compile_seconds = self.compile_seconds
                for text in found:
                    text.count_in(summary)
                    yield text

    def _group(
        self,
        group: Sequence[tuple[int, str]],
        given: Sequence[np.ndarray],
        seed: int,
        sample: int,
    ) -> tuple[list[Text], float]:
        """Returns the transcripts of at most as many sounds as there are rows, and the seconds."""
        is_whole = [self._has_stamps or x.shape[1] > self._frames for x in given]
        found: dict[int, Text] = {}
        spent = 0.0
        for whole in {*is_whole}:
            rows = [row for row, one in enumerate(is_whole) if one == whole]
            names, sounds = [group[row] for row in rows], [given[row] for row in rows]
            index = [number for number, _ in names]
            keys = decoding.row_keys(seed, self._padded(index), sample)
            texts, seconds = (self._long if whole else self._short)(names, sounds, keys, sample)
            spent += seconds
            found |= zip(rows, texts, strict=True)
        return [found[row] for row in range(len(group))], spent

    def _padded(self, index: Sequence[int]) -> Array:
        return jnp.array([*index, *[-1] * (self._engine.rows - len(index))])

    def _short(self, names, sounds, keys: Array, sample: int) -> tuple[list[Text], float]:
        features = np.zeros([self._engine.rows, self._bins, self._frames], np.float32)
        features[: len(sounds)] = sounds
        output, seconds = self._engine.decoder.fetch(self._engine.params, keys, features)
        texts = []
        for row, (index, name) in enumerate(names):
            tokens = output.row(row).tokens
            log_probs = output.log_probs[row, : len(tokens)].tolist()
            more = self._of_text(index, name, sample, tokens, log_probs)
            texts.append(Text.of(output, row, **more))
        return texts, seconds

    def _long(self, names, sounds, keys: Array, sample: int) -> tuple[list[Text], float]:
        found, seconds = self._whole.transcribe(sounds, keys)
        texts = []
        for (index, name), windows in zip(names, found, strict=True):
            segments = [segment for window in windows for segment in window.segments]
            tokens = [token for segment in segments for token in segment.tokens]
            log_probs = [x for window in windows for x in window.log_probs]
            shown = tokens if self._has_stamps else self._words(tokens)
            own = self._of_text(index, name, sample, shown, log_probs)
            parts = [
                {
                    "start": round(segment.start, 2),
                    "end": round(segment.end, 2),
                    "text": self._text(self._words(segment.tokens), name),
                }
                for segment in segments
            ]
            texts.append(Text(tokens=tokens, **_calls(windows), **own, segments=parts))
        return texts, seconds

    def _of_text(
        self,
        index: int,
        name: str,
        sample: int,
        shown: Sequence[int],
        log_probs: Sequence[float],
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
        """Returns the ids without timestamps."""
        return [token for token in tokens if token < self._whole.zero]

    def _text(self, tokens: Sequence[int], name: str) -> str:
        return tasks.detokenize(self._engine.vocabulary, tokens, name)


def _calls(windows: Sequence[Window]) -> dict[str, Any]:
    """Returns the target calls of all windows, also for tokens that were thrown away."""
    names = ("proposed", "drafted", "accepted", "sources", "depths")
    calls = {name: [x for one in windows for x in getattr(one.decoded, name)] for name in names}
    return {**calls, "broken_drafts": sum(one.decoded.broken_drafts for one in windows)}
