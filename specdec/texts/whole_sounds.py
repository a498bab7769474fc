"""Transcribes sounds with a Whisper window by window, as transformers' `generate` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import decoding
from specdec.checkpoints import generation_settings as generation
from specdec.checkpoints.transcription import Transcribed
from specdec.common.decoded import DecodedText
from specdec.decoding.program import DecodeProgram
from specdec.engine import Engine
from specdec.models.whisper.segments import Segment, segments_of
from specdec.sampling import Opening, Timestamps, looks_back
from specdec.types import Array, DecodeOutput, Params, PyTree


class Window(NamedTuple):
    """The transcript of one window of a sound."""

    segments: list[Segment]  # without a last one that the next window repeats
    decoded: DecodedText  # the output of the window, and its target calls
    log_probs: list[float]  # of each token of the segments, in nats


class WholeSounds:
    """Transcribes sounds of any length with a Whisper's engine that `stamped` returned."""

    def __init__(self, engine: Engine):
        sampling = engine.plan.sampling
        rules = sampling.processors if looks_back(sampling) else ()
        self._engine = engine
        (self._times,) = (rule for rule in rules if isinstance(rule, Timestamps))
        choices = [x for rule in rules if isinstance(rule, Opening) for x in rule.choices]
        self._opening, self._later = len(choices), engine.program
        if any(len(choice) > 1 for choice in choices):  # the first window detects the language
            self._later = DecodeProgram(
                engine.plan, mesh=engine.placement.mesh, function=_opened_by_the_first
            )

    @property
    def zero(self) -> int:
        """The id of the timestamp 0; ids of words are lower."""
        return self._times.no_timestamps_id + 1

    @property
    def compile_seconds(self) -> float:
        """The seconds of all compilations so far."""
        return sum(program.seconds for program in {self._engine.program, self._later})

    def transcribe(
        self, sounds: Sequence[np.ndarray], keys: Array
    ) -> tuple[list[list[Window]], float]:
        """Returns the windows of each sound, and the seconds of decoding without compilation.

        `sounds` are the log-mel features [mel_bins, F] of at most B sounds, see
        `tasks.features_of`. `keys` [B] are the random keys of the engine's rows.
        """
        target, rows = self._engine.plan.target, self._engine.rows
        shape = target.inputs_shape(rows, 1).shape
        windows: list[list[Window]] = [[] for _ in sounds]
        begins, spent = [0] * len(sounds), 0.0
        opening = np.full([rows, self._opening], target.pad_id, np.int32)
        for number in range(max(sound.shape[1] for sound in sounds)):
            unfinished = [row for row, x in enumerate(sounds) if begins[row] < x.shape[1]]
            if not unfinished:
                break
            features = np.zeros(shape, np.float32)
            for row in unfinished:
                part = sounds[row][:, begins[row] : begins[row] + shape[-1]]
                features[row, :, : part.shape[1]] = part
            program, inputs, keys_of_window = self._engine.program, features, keys
            if number:
                keys_of_window = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
                if self._later is not program:
                    program, inputs = self._later, (features, jnp.asarray(opening))
            output, seconds = program.fetch(self._engine.params, keys_of_window, inputs)
            spent += seconds
            for row in unfinished:
                frames = min(sounds[row].shape[1] - begins[row], shape[-1])
                if not number:
                    opening[row] = output.row(row).tokens[: self._opening]
                window, step = self._window(output, row, begins[row], frames)
                windows[row].append(window)
                begins[row] += step
        return windows, spent

    def _window(
        self, output: DecodeOutput, row: int, begin: int, frames: int
    ) -> tuple[Window, int]:
        decoded = DecodedText.of(output, row)
        tokens = list(decoded.tokens[self._opening :])
        if tokens and tokens[-1] in (self._engine.plan.stop_ids or ()):
            tokens.pop()
        segments, step = segments_of(tokens, self.zero, begin, frames)
        end = self._opening + sum(len(segment.tokens) for segment in segments)
        log_probs = output.log_probs[row, self._opening : end].tolist()
        return Window(segments, decoded, log_probs), step


def stamped(engine: Engine) -> Engine:
    """Returns a Whisper's engine, changed so that its outputs have timestamps."""
    if not isinstance(engine.settings, Transcribed) or engine.text is None:
        raise ValueError(
            "timestamps need a checkpoint's settings; give --gin_file=transcribe.gin, in "
            "Python generation_settings=checkpoints.Transcribed()"
        )
    if engine.settings.timestamps:
        return engine
    plan = generation.with_timestamps(engine.plan, engine.text, engine.settings)
    settings = dataclasses.replace(engine.settings, timestamps=True)
    engine = engine.variant(sampling=plan.sampling, drafter=plan.drafter)
    return dataclasses.replace(engine, settings=settings)


def _opened_by_the_first(
    params: Params, keys: Array, inputs: PyTree, *, plan, prefix
) -> DecodeOutput:
    features, opening = inputs
    return decoding.decode(params, keys, features, plan, prefix=opening)
