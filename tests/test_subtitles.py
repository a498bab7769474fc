"""Times in subtitles, of every hundredth of a second: pytest tests/test_subtitles.py"""

from __future__ import annotations

import pytest

from specdec.common.subtitles import subtitles

HOUR = 360_000  # hundredths


def clock(hundredths: int, mark: str) -> str:
    """Returns a time of whole hundredths in whole numbers, in which nothing is rounded."""
    seconds, rest = divmod(hundredths, 100)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours:02d}:{minutes:02d}:{seconds % 60:02d}{mark}{10 * rest:03d}"


@pytest.mark.parametrize("kind, mark", [("srt", ","), ("vtt", ".")])
@pytest.mark.parametrize("begin", [0, 5_900, HOUR - 100, 27 * HOUR + 35_990])
def test_no_time_is_a_thousandth_early(kind, mark, begin):
    """4.02 is less than 4.02 as a float, and 00:00:04,019 was written for it."""
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
