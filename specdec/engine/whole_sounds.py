"""Whole sounds, window by window, as transformers' `generate` transcribes them with a Whisper.

Radford et al. 2022 (2212.04356), section 4.5: the model says when its segments begin and end. What
it says after the last end is thrown away, and the next window begins there.
"""

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
from specdec.engine.engine import Engine
from specdec.models.whisper.whisper_network import STRIDE
from specdec.sampling import Opening, Timestamps, looks_back
from specdec.types import Array, DecodeOutput, Params, PyTree

FRAMES = 100  # in a second


class Segment(NamedTuple):
    """A part of a transcript, with its times.

    Attributes:
      start: in seconds from the begin of the sound.
      end: in seconds.
      tokens: the ids, with those of its timestamps.
    """

    start: float
    end: float
    tokens: tuple[int, ...]


class Window(NamedTuple):
    """A part of a sound that was decoded by one call of the program.

    Attributes:
      segments: those that are kept.
      decoded: the output of the window, and its target calls.
      log_probs: of the tokens of the segments, in nats.
    """

    segments: list[Segment]
    decoded: DecodedText
    log_probs: list[float]


class WholeSounds:
    """Transcribes sounds of any length with an engine of a Whisper.

    Args:
      engine: its outputs have timestamps, see `stamped`.
    """

    def __init__(self, engine: Engine):
        sampling = engine.plan.sampling
        rules = sampling.processors if looks_back(sampling) else ()
        self._engine = engine
        (self._times,) = (rule for rule in rules if isinstance(rule, Timestamps))
        choices = [x for rule in rules if isinstance(rule, Opening) for x in rule.choices]
        self._opening, self._later = len(choices), engine.program
        if any(len(choice) > 1 for choice in choices):  # the first window finds the language
            self._later = DecodeProgram(
                engine.plan, mesh=engine.placement.mesh, function=_opened_by_the_first
            )

    @property
    def zero(self) -> int:
        """The id of the timestamp 0; those of words are lower."""
        return self._times.no_timestamps_id + 1

    @property
    def compile_seconds(self) -> float:
        """The time of all compilations so far."""
        programs = {id(one): one for one in (self._engine.program, self._later)}
        return sum(one.seconds for one in programs.values())

    def transcribe(
        self, sounds: Sequence[np.ndarray], keys: Array
    ) -> tuple[list[list[Window]], float]:
        """Returns the windows of each sound, and the seconds that they took without compiling.

        Args:
          sounds: the log-mel features [mel_bins, F] float32 of at most as many sounds as the engine
            has rows, see `tasks.features_of`.
          keys: [B] random keys, one for each row.
        """
        target, rows = self._engine.plan.target, self._engine.rows
        shape = target.inputs_shape(rows, 1).shape
        found: list[list[Window]] = [[] for _ in sounds]
        begins, spent = [0] * len(sounds), 0.0
        opening = np.full([rows, self._opening], target.pad_id, np.int32)
        for number in range(max(sound.shape[1] for sound in sounds)):
            left = [row for row, x in enumerate(sounds) if begins[row] < x.shape[1]]
            if not left:
                break
            features = np.zeros(shape, np.float32)
            for row in left:
                part = sounds[row][:, begins[row] : begins[row] + shape[-1]]
                features[row, :, : part.shape[1]] = part
            own = jax.vmap(jax.random.fold_in, (0, None))(keys, number) if number else keys
            program, given = self._engine.program, features
            if number and self._later is not program:
                program, given = self._later, (features, jnp.asarray(opening))
            output, seconds = program.fetch(self._engine.params, own, given)
            spent += seconds
            for row in left:
                frames = min(sounds[row].shape[1] - begins[row], shape[-1])
                if not number:
                    opening[row] = output.row(row).tokens[: self._opening]
                window, step = self._window(output, row, begins[row], frames)
                found[row].append(window)
                begins[row] += step
        return found, spent

    def _window(
        self, output: DecodeOutput, row: int, begin: int, frames: int
    ) -> tuple[Window, int]:
        decoded = DecodedText.of(output, row)
        tokens = list(decoded.tokens[self._opening :])
        if tokens and tokens[-1] in (self._engine.plan.stop_ids or ()):
            tokens.pop()
        segments, step = segments_of(tokens, self.zero, begin, frames)
        kept = self._opening + sum(len(segment.tokens) for segment in segments)
        log_probs = output.log_probs[row, self._opening : kept].tolist()
        return Window(segments, decoded, log_probs), step


def stamped(engine: Engine) -> Engine:
    """Returns an engine of a Whisper with outputs that have timestamps."""
    if not isinstance(engine.settings, Transcribed) or engine.text is None:
        raise ValueError(
            "timestamps need a checkpoint's settings; give --gin_file=transcribe.gin, in "
            "Python generation_settings=checkpoints.Transcribed()"
        )
    if engine.settings.timestamps:
        return engine
    plan = generation.with_timestamps(engine.plan, engine.text, engine.settings)
    found = engine.variant(sampling=plan.sampling, drafter=plan.drafter)
    settings = dataclasses.replace(engine.settings, timestamps=True)
    return dataclasses.replace(found, settings=settings)


def segments_of(
    tokens: Sequence[int], zero: int, begin: int, frames: int
) -> tuple[list[Segment], int]:
    """Returns the segments of a window's output, and where the next window begins.

    A segment ends where two timestamps meet, or where the output ends in a single one.
    """

    def segment(tokens: Sequence[int], start: int, end: int) -> Segment:
        times = (begin + STRIDE * start) / FRAMES, (begin + STRIDE * end) / FRAMES
        return Segment(*times, tuple(tokens))

    is_time = [token >= zero for token in tokens]
    pairs = [at for at in range(1, len(tokens)) if is_time[at - 1] and is_time[at]]
    finished = is_time[-2:] == [False, True]
    if not pairs:
        (*_, last) = (0, *(token - zero for token in tokens if token >= zero))
        return [segment(tokens, 0, last or frames // STRIDE)], frames
    found, start = [], 0
    for at in pairs[:-1] if not finished else pairs:
        found.append(segment(tokens[start:at], tokens[start] - zero, tokens[at - 1] - zero))
        start = at
    if finished:
        found.append(segment(tokens[start:], tokens[start] - zero, tokens[-1] - zero))
        return found, frames
    end = tokens[pairs[-1] - 1] - zero
    found.append(segment(tokens[start : pairs[-1] + 1], tokens[start] - zero, end))
    return found, max(STRIDE * end, STRIDE)


def _opened_by_the_first(
    params: Params, keys: Array, inputs: PyTree, *, plan, prefix
) -> DecodeOutput:
    features, opening = inputs
    return decoding.decode(params, keys, features, plan, prefix=opening)
