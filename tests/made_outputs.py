"""Outputs that no model has made, for tests of what is made of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specdec.decoding.beam_search import BeamOutput, BeamTrace
from specdec.types import DecodeOutput, Trace


class Made(NamedTuple):
    """A row of an output: its tokens with their log-probabilities, and its target calls."""

    tokens: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    drafted: Sequence[int] = ()
    accepted: Sequence[int] = ()
    proposed: Sequence[Sequence[int]] = ()
    broken_drafts: int = 0


def output_of(*rows: Made) -> DecodeOutput:
    """Returns the output with these rows, on the host."""

    def filled(values: list, *shape: int, dtype: type = np.int32) -> np.ndarray:
        array = np.zeros([len(rows), *shape], dtype)
        for row, given in zip(array, values, strict=True):
            row[: len(given)] = given
        return array

    length, calls = ([len(getattr(row, name)) for row in rows] for name in ("tokens", "drafted"))
    widest, most = max([1, *length]), max([1, *calls])
    deepest = max([1, *(draft for row in rows for draft in row.drafted)])
    proposed = np.zeros([len(rows), most, deepest], np.int32)
    for row, given in zip(proposed, rows, strict=True):
        for call, ids in zip(row, given.proposed, strict=False):
            call[: len(ids)] = ids
    trace = Trace(
        proposed=proposed,
        drafted=filled([row.drafted for row in rows], most),
        accepted=filled([row.accepted for row in rows], most),
        calls=np.array(calls, np.int32),
        ended_in_draft=np.zeros(len(rows), bool),
        steps=np.int32(max(calls)),
        broken_drafts=np.array([row.broken_drafts for row in rows], np.int32),
        failed=np.zeros(len(rows), bool),
    )
    tokens = filled([row.tokens for row in rows], widest)
    log_probs = filled([row.log_probs for row in rows], widest, dtype=np.float32)
    return DecodeOutput(tokens, np.array(length, np.int32), log_probs, trace)


class MadeBeams(NamedTuple):
    """The beams of a text, best first, their scores, and the steps of each target call."""

    tokens: Sequence[Sequence[int]]
    scores: Sequence[float]
    steps: Sequence[int]


def beams_of(*rows: MadeBeams) -> BeamOutput:
    """Returns the output with these rows, on the host; a beam without tokens is an empty place."""
    widest = max(len(ids) for row in rows for ids in row.tokens)
    most = max(len(row.steps) for row in rows)
    tokens = np.zeros([len(rows), len(rows[0].tokens), widest], np.int32)
    steps = np.zeros([len(rows), most], np.int32)
    for of_row, of_calls, row in zip(tokens, steps, rows, strict=True):
        of_calls[: len(row.steps)] = row.steps
        for beam, ids in zip(of_row, row.tokens, strict=True):
            beam[: len(ids)] = ids
    length = np.array([[len(ids) for ids in row.tokens] for row in rows], np.int32)
    calls = np.array([len(row.steps) for row in rows], np.int32)
    scores = np.array([row.scores for row in rows], np.float32)
    trace = BeamTrace(steps, calls, np.zeros(len(rows), bool))
    return BeamOutput(tokens, length, scores, length > 0, trace)
