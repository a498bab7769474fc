"""Transcripts of whole sounds, window by window, worked out by hand: pytest tests/texts

A script stands for the model, so each window's features, key, opening and output are known. A
window has eight frames, and a timestamp is two frames later than the one before.
"""

from __future__ import annotations

import types
from typing import Any

import jax
import numpy as np
from made_outputs import Made, output_of

from specdec import decoding, tasks
from specdec.sampling import Opening, Sampling, Timestamps, with_processors
from specdec.texts import transcripts, whole_sounds
from specdec.texts.transcripts import Transcriber, compared

ROWS, BINS, FRAMES = 3, 2, 8
EN, DE, SAY, END, NO_TIMES, ZERO = 3, 4, 5, 9, 10, 11  # a timestamp of n steps is ZERO + n
TIMES = Timestamps(NO_TIMES, END, 2)
LETTERS = {1: "a", 2: "b", 6: "c", 7: "d", 8: "e"}


def sound(frames: int, first: int) -> np.ndarray:
    """Features that say which sound and which frame they are of."""
    return np.stack([first + np.arange(frames), -first - np.arange(frames)]).astype(np.float32)


class Scripted:
    """A program that gives what the script says, and keeps what it was asked."""

    seconds = 0.5

    def __init__(self, name: str, script: list, asked: list):
        self._name, self._script, self._asked = name, script, asked

    def fetch(self, params, keys, inputs):
        features, opening = inputs if isinstance(inputs, tuple) else (inputs, None)
        opening = None if opening is None else np.asarray(opening).tolist()
        keys = jax.random.key_data(keys).tolist()
        self._asked.append((self._name, keys, np.array(features), opening))
        rows, seconds = self._script.pop(0)
        return output_of(*rows, *[Made()] * (ROWS - len(rows))), seconds


class Letters:
    """A vocabulary of five letters."""

    eos_id = END

    def decode(self, ids) -> str:
        return "".join(LETTERS.get(id, f"<{id}>") for id in ids)


def engine(monkeypatch, script: list, choices: tuple) -> tuple[Any, list]:
    """Returns an engine of three rows with a script, and what its programs are asked."""
    asked: list = []
    sampling = with_processors(Sampling(), [TIMES, Opening(choices)])
    target = types.SimpleNamespace(
        pad_id=0, inputs_shape=lambda rows, n: np.zeros([rows, BINS, FRAMES], np.float32)
    )
    plan = types.SimpleNamespace(
        sampling=sampling, target=target, stop_ids=(END,), reads_previous=False
    )
    made: Any = types.SimpleNamespace(
        plan=plan,
        rows=ROWS,
        params={},
        prefix=(),
        settings=None,
        vocabulary=Letters(),
        placement=types.SimpleNamespace(mesh=None),
        program=Scripted("first", script, asked),
        compile_seconds=0.5,
    )
    monkeypatch.setattr(transcripts, "stamped", lambda engine: made)
    later = lambda plan, **_: Scripted("later", script, asked)  # noqa: E731
    monkeypatch.setattr(whole_sounds, "DecodeProgram", later)
    return made, asked


def times(*values: int) -> list[int]:
    """Returns tokens in which n + 100 stands for the timestamp of n steps."""
    return [value - 100 + ZERO if value >= 100 else value for value in values]


# The first sound has 18 frames. Its first window is cut at step 2, so the second one begins at
# frame 4; that one is finished, so the third begins at 12, and has six frames. It has no pair.
# The second sound has eleven frames: the second window has three of them, which are one step.
WINDOWS = [
    (
        [
            Made(
                times(DE, SAY, 100, 1, 102, 102, 2, END),
                [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8],
                [4, 4],
                [3, 3],
                [[1, 1, 1, 1], [2, 2, 2, 2]],
                1,
            ),
            Made(
                times(EN, SAY, 100, 6, 103, END),
                [-1.1, -1.2, -1.3, -1.4, -1.5, -1.6],
                [4],
                [4],
                [[6, 6, 6, 6]],
                2,
            ),
        ],
        1.0,
    ),
    (
        [
            Made(
                times(DE, SAY, 101, 1, 1, 103, 103, 2, 104, END),
                [-2.1, -2.2, -2.3, -2.4, -2.5, -2.6, -2.7, -2.8, -2.9, -2.95],
                [5],
                [5],
                [[7, 7, 7, 7, 7]],
                4,
            ),
            Made(times(EN, SAY, 100, 7, 8), [-3.1, -3.2, -3.3, -3.4, -3.5], [3], [2], [[8, 8, 8]]),
        ],
        2.0,
    ),
    ([Made(times(DE, SAY, 100, 2, 2, END), [-4.0 - x / 10 for x in range(6)], [0], [0])], 4.0),
]
SEGMENTS = [
    [(0.0, 0.04, "a"), (0.06, 0.1, "aa"), (0.1, 0.12, "b"), (0.12, 0.18, "bb")],
    [(0.0, 0.06, "c"), (0.08, 0.1, "de")],
]
TOKENS = [
    times(100, 1, 102, 102, 101, 1, 1, 103, 103, 2, 104, 100, 2, 2),
    times(100, 6, 103, 100, 7, 8),
]
LOG_PROBS = [
    [-0.3, -0.4, -0.5, -0.6, -2.3, -2.4, -2.5, -2.6, -2.7, -2.8, -2.9, -4.2, -4.3, -4.4],
    [-1.3, -1.4, -1.5, -3.3, -3.4, -3.5],
]


def test_windows_begin_where_the_last_segment_ends(monkeypatch):
    """The first window finds the language. Each has a key of its own, and its own frames."""
    made, asked = engine(monkeypatch, [*WINDOWS], ((EN, DE), (SAY,)))
    sounds, keys = [sound(18, 100), sound(11, 500)], decoding.row_keys(7, np.array([4, 6, -1]), 2)
    found, seconds = whole_sounds.WholeSounds(made).transcribe(sounds, keys)
    assert seconds == 7.0
    assert [program for program, *_ in asked] == ["first", "later", "later"]
    opened = [[DE, SAY], [EN, SAY], [0, 0]]
    assert [opening for *_, opening in asked] == [None, opened, opened]
    begins = [[(0, 8), (0, 8)], [(4, 12), (8, 11)], [(12, 18)]]
    for number, (window, (_, own, features, _)) in enumerate(zip(begins, asked, strict=True)):
        expected = np.zeros([ROWS, BINS, FRAMES], np.float32)
        for row, (begin, end) in enumerate(window):
            expected[row, :, : end - begin] = sounds[row][:, begin:end]
        np.testing.assert_array_equal(features, expected)
        fold = jax.random.fold_in
        folded = [fold(key, number) if number else key for key in keys]
        assert own == [jax.random.key_data(key).tolist() for key in folded]
    for windows, tokens, log_probs in zip(found, TOKENS, LOG_PROBS, strict=True):
        segments = [segment for window in windows for segment in window.segments]
        assert [token for segment in segments for token in segment.tokens] == tokens
        kept = [value for window in windows for value in window.log_probs]
        np.testing.assert_allclose(kept, log_probs, rtol=1e-6)  # float32
    assert [[len(window.segments) for window in windows] for windows in found] == [
        [1, 2, 1],
        [1, 1],
    ]


def test_a_known_language_needs_one_program(monkeypatch):
    made, asked = engine(monkeypatch, [*WINDOWS], ((DE,), (SAY,)))
    whole_sounds.WholeSounds(made).transcribe([sound(18, 100)], decoding.row_keys(0, np.arange(3)))
    assert [(program, opening) for program, _, _, opening in asked] == [("first", None)] * 3


def test_transcripts_of_a_later_batch(monkeypatch):
    """Sounds 4 and 6 are long, and 5 has one window; their keys are those of their own places."""
    fits = Made([1, 7, END], [-5.0, -5.5, -5.75], [2, 2], [1, 0], [[1, 2], [6, 6]], 8)
    script = {"long": [*WINDOWS], "short": [([fits], 16.0)]}
    made, asked = engine(monkeypatch, script["long"], ((EN, DE), (SAY,)))
    one, of_short = engine(monkeypatch, script["short"], ((EN, DE), (SAY,)))
    monkeypatch.setattr(transcripts, "stamped", lambda engine: made)
    later = lambda plan, **_: Scripted("later", script["long"], asked)  # noqa: E731
    monkeypatch.setattr(whole_sounds, "DecodeProgram", later)
    sounds = [sound(18, 100), sound(8, 900), sound(11, 500)]
    names, index = ["x.wav", "y.wav", "z.wav"], np.array([4, 5, 6])
    batch = tasks.Batch(sounds, np.zeros([ROWS, 0], np.int32), index, names, None, None)
    ((texts, seconds),) = Transcriber(one).outputs([(batch, 2)], seed=7)
    assert seconds == 7.0 + 16.0

    def keys(*index: int) -> list:
        return jax.random.key_data(decoding.row_keys(7, np.array(index), 2)).tolist()

    assert asked[0][1] == keys(4, 6, -1) and [one[1] for one in of_short] == [keys(5, -1, -1)]
    long, short, other = texts
    assert [(one.index, one.sample, one.input) for one in texts] == [
        (4, 2, "x.wav"),
        (5, 2, "y.wav"),
        (6, 2, "z.wav"),
    ]
    for text, segments, tokens, log_probs in zip(
        (long, other), SEGMENTS, TOKENS, LOG_PROBS, strict=True
    ):
        assert [tuple(one.values()) for one in text.segments] == segments
        assert text.prediction == "".join(said for *_, said in segments)
        assert text.tokens == tokens and text.log_probs == log_probs
    # All calls count, also those of words that were thrown away.
    assert (long.drafted, long.accepted) == ([4, 4, 5, 0], [3, 3, 5, 0])
    assert (other.drafted, other.accepted) == ([4, 3], [4, 2])
    assert other.proposed == [[6, 6, 6, 6], [8, 8, 8, 0, 0]]
    assert [one.broken_drafts for one in texts] == [5, 8, 2]
    assert (short.tokens, short.prediction) == ([1, 7, END], "ad<9>")
    assert short.log_probs == [-5.0, -5.5, -5.75] and short.segments is None
    assert (short.drafted, short.accepted) == ([2, 2], [1, 0])

    alone = compared(short, long)
    assert (alone.alone, alone.alone_tokens, alone.alone_calls) == ("aaabbb", long.tokens, 4)
    assert (alone.tokens, alone.calls) == (short.tokens, 2) and compared(short, None) == short


def test_sounds_of_one_window_are_rows_of_one_call(monkeypatch):
    first = Made([1, END], [-0.25, -0.5], [1], [1], [[1]])
    second = Made([6, 7, END], [-1.5, -1.75, -2.0], [2, 1], [1, 0], [[6, 6], [8]])
    made, asked = engine(monkeypatch, [([first, second], 3.0)], ((EN,), (SAY,)))
    sounds, index = [sound(8, 100), sound(8, 500)], np.array([3, 4, -1])
    names = tasks.Batch(sounds, np.zeros([3, 0]), index, ["x", "y"], None, None)
    texts, seconds = Transcriber(made).decode(names)
    assert seconds == 3.0 and len(asked) == 1 and [one.sample for one in texts] == [0, 0]
    np.testing.assert_array_equal(asked[0][2], [*sounds, np.zeros_like(sounds[0])])
    assert [(one.index, one.input, one.prediction) for one in texts] == [
        (3, "x", "a<9>"),
        (4, "y", "cd<9>"),
    ]
    assert [one.log_probs for one in texts] == [[-0.25, -0.5], [-1.5, -1.75, -2.0]]
    assert [one.accepted for one in texts] == [[1], [1, 0]]


def test_transcripts_with_timestamps_in_their_words(monkeypatch):
    """A sound that fits a window has segments too, and its text has the timestamps."""
    from specdec.checkpoints import Transcribed

    one = [([Made(times(EN, SAY, 100, 6, 103, END), [-0.5] * 6, [0], [0])], 1.0)]
    made, asked = engine(monkeypatch, one, ((EN,), (SAY,)))
    made.settings = Transcribed("en", timestamps=True)
    names = tasks.Batch([sound(8, 0)], np.zeros([3, 0]), np.array([0, -1, -1]), ["x"], None, None)
    transcriber = Transcriber(made)
    ((text,), _) = transcriber.decode(names)
    assert text.prediction == f"<{ZERO}>c<{ZERO + 3}>" and text.log_probs == [-0.5] * 3
    assert [tuple(part.values()) for part in text.segments] == [(0.0, 0.06, "c")]
    assert transcriber.compile_seconds == 0.5 and len(asked) == 1
