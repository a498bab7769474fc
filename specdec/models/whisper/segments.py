"""The segments that a Whisper divides a window of sound into.

Radford et al. 2022 (2212.04356), section 4.5: timestamps in the output tell when segments begin and
end. Output after the last end is discarded, and the next window begins at this time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec.models.whisper.whisper_model import STRIDE

FRAMES = 100  # in a second


class Segment(NamedTuple):
    """A part of a transcript, with its times in seconds from the beginning of the sound."""

    start: float
    end: float
    tokens: tuple[int, ...]  # the ids, with those of its timestamps


def segments_of(
    tokens: Sequence[int], zero: int, begin: int, frames: int
) -> tuple[list[Segment], int]:
    """Returns the segments of a window's output `tokens`, and the frames until the next window.

    A segment ends where two timestamps meet, or where the output ends in a single timestamp. The
    window has `frames` frames from frame `begin` of the sound on; `zero` is the id of time 0.
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
    segments, start = [], 0
    for at in pairs[:-1] if not finished else pairs:
        segments.append(segment(tokens[start:at], tokens[start] - zero, tokens[at - 1] - zero))
        start = at
    if finished:
        segments.append(segment(tokens[start:], tokens[start] - zero, tokens[-1] - zero))
        return segments, frames
    end = tokens[pairs[-1] - 1] - zero
    segments.append(segment(tokens[start : pairs[-1] + 1], tokens[start] - zero, end))
    return segments, max(STRIDE * end, STRIDE)
