"""Segments of transcripts and their subtitles, by hand: pytest tests/test_segments.py"""

from __future__ import annotations

import pytest

from specdec.common.subtitles import subtitles
from specdec.models.whisper.segments import Segment, segments_of

ZERO = 11  # each later id is 2 hundredths of a second later


@pytest.mark.parametrize(
    "tokens, begin, segments, step",
    [
        ([1, 2], 0, [(0, 0.46, [1, 2])], 46),
        ([11, 1, 2], 100, [(1.0, 1.46, [11, 1, 2])], 46),
        ([11, 1, 16], 0, [(0, 0.1, [11, 1, 16])], 46),
        # The timestamp 0 at the end says nothing, as in transformers.
        ([13, 1, 11], 0, [(0, 0.46, [13, 1, 11])], 46),
        # What follows the last two timestamps is said again by the next window.
        ([12, 1, 16, 16, 2], 0, [(0.02, 0.1, [12, 1, 16, 16])], 10),
        (
            [11, 1, 13, 14, 2, 17, 18],
            200,
            [(2.0, 2.04, [11, 1, 13]), (2.06, 2.12, [14, 2, 17, 18])],
            12,
        ),
        ([11, 11, 1], 0, [(0, 0, [11, 11])], 2),
        # One timestamp at the end: the whole window is used.
        (
            [11, 1, 13, 13, 2, 17],
            100,
            [(1.0, 1.04, [11, 1, 13]), (1.04, 1.12, [13, 2, 17])],
            46,
        ),
    ],
)
def test_segments_of_a_window_of_46_frames(tokens, begin, segments, step):
    expected = [Segment(start, end, tuple(own)) for start, end, own in segments]
    assert segments_of(tokens, ZERO, begin, 46) == (expected, step)


def test_subtitles_word_by_word():
    """Times are rounded: 4.02 s are 4,019.99... thousandths."""
    parts = [
        {"start": 0.0, "end": 4.02, "text": " a & b <i>"},
        {"start": 4.02, "end": 5.0, "text": " \n"},
        {"start": 59.9996, "end": 3723.5, "text": "c\nd"},
    ]
    assert subtitles(parts, "srt") == (
        "1\n00:00:00,000 --> 00:00:04,020\na & b <i>\n\n2\n00:01:00,000 --> 01:02:03,500\nc d\n"
    )
    assert subtitles(parts, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:04.020\na &amp; b &lt;i&gt;\n\n"
        "00:01:00.000 --> 01:02:03.500\nc d\n"
    )


HOUR = 360_000  # hundredths


def clock(hundredths: int, mark: str) -> str:
    """Returns a time of whole hundredths in whole numbers, in which nothing is rounded."""
    seconds, rest = divmod(hundredths, 100)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours:02d}:{minutes:02d}:{seconds % 60:02d}{mark}{10 * rest:03d}"


@pytest.mark.parametrize("kind, mark", [("srt", ","), ("vtt", ".")])
@pytest.mark.parametrize("begin", [0, 5_900, HOUR - 100, 27 * HOUR + 35_990])
def test_no_time_is_a_thousandth_early(kind, mark, begin):
    parts = range(begin, begin + 500)
    segments = [{"start": n / 100, "end": (n + 1) / 100, "text": f"t{n}"} for n in parts]
    made = subtitles(segments, kind).split("\n")
    numbers = kind == "srt"
    expected = [] if numbers else ["WEBVTT", ""]
    for number, n in enumerate(parts, start=1):
        expected += [*([str(number)] if numbers else []), f"{clock(n, mark)} --> "]
        expected[-1] += clock(n + 1, mark)
        expected += [f"t{n}", ""]
    assert made == expected
