"""Texts and summaries for people, on a hand-made trace: pytest tests/test_terminal.py"""

import io
import re

import pytest

from specdec import terminal
from specdec.terminal import Origin

A, T, R = Origin.ACCEPTED, Origin.TARGET, Origin.REJECTED
WORDS = {2: " the", 3: " a", 4: " red", 5: " big", 6: " ball", 7: "s", 8: " falls", 9: "."}

# Call by call: 2 of 3 kept and one corrected; none kept; all kept and one more; EOS in the draft.
TOKENS = [2, 4, 6, 3, 8, 9, 5, 7, 1]
PROPOSED = [[2, 4, 5], [6, 6, 6], [8, 9, 0], [7, 1, 0]]
DRAFTED = [3, 3, 2, 2]
ACCEPTED = [2, 0, 2, 2]


class Screen(io.StringIO):
    def isatty(self):
        return True


def text_of(tokens):
    return "".join(WORDS.get(token, "") for token in tokens).lstrip(" ")


def marked():
    return list(terminal.origins(TOKENS, PROPOSED, DRAFTED, ACCEPTED))


def test_every_token_is_attributed():
    assert marked() == [
        *[(2, A), (4, A), (5, R), (6, T)],
        *[(6, R), (3, T)],
        *[(8, A), (9, A), (5, T)],
        *[(7, A), (1, A)],
    ]


def test_the_output_is_what_is_not_rejected():
    assert [token for token, origin in marked() if origin is not R] == TOKENS


def test_pieces_concatenate_to_the_text():
    shown = list(terminal.pieces(marked(), text_of))
    assert "".join(text for text, origin in shown if origin is not R) == text_of(TOKENS)
    assert shown[:4] == [("the", A), (" red", A), (" big", R), (" ball", T)]


def test_a_rejected_word_is_not_part_of_the_text():
    assert list(terminal.pieces([(4, R), (2, T)], text_of)) == [("red", R), ("the", T)]


def test_a_character_of_several_tokens_belongs_to_the_last_one():
    def text_of(tokens):
        return bytes(tokens).decode("utf-8", errors="replace")

    first, second = "ü".encode()
    shown = terminal.pieces([(first, A), (second, T), (ord("x"), A)], text_of)
    assert list(shown) == [("ü", T), ("x", A)]


def test_paint():
    green, blue, struck, off = "\x1b[32m", "\x1b[1;94m", "\x1b[2;9;31m", "\x1b[0m"
    line = [("the", A), (" red", A), (" big", R), (" ball", T), ("s", A)]
    assert terminal.paint(line) == (
        f"{green}the red{off} {struck}big{off} {blue}ball{off}{green}s{off}"
    )


def test_the_legend_is_in_the_colours_it_explains():
    for origin in Origin:
        assert f"\x1b[{origin.value}m{terminal.LABELS[origin]}\x1b[0m" in terminal.legend(True)
    assert "given" not in terminal.legend()


def test_a_text_cannot_break_the_line_or_drive_the_terminal():
    nasty = "a\nb\r\tc\x1b[2Jd\u2028e\x9b31m"
    assert terminal.one_line(nasty) == "a b  c [2Jd e 31m"
    assert re.sub(r"\x1b\[[\d;]*m", "", terminal.paint([(nasty, A)])) == terminal.one_line(nasty)


@pytest.mark.parametrize(
    "stream, environment, colour",
    [
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(stream, environment, colour):
    assert terminal.wants_colour(stream, environment) is colour


def test_summary():
    summary = terminal.Summary(
        texts=1,
        tokens=len(TOKENS),
        drafted=DRAFTED,
        accepted=ACCEPTED,
        seconds=1.25,
        compile_seconds=3.0,
    )
    # 6 accepted, 2 rejected; the drafted tokens behind a rejection were never tested.
    assert summary.lines() == [
        "1 texts, 9 tokens, 4 target calls: 2.25 tokens per call, alpha 0.750",
        "1.2 s decoding, 3.0 s compiling",
    ]
    summary.baseline_calls, summary.baseline_seconds, summary.identical = 9, 2.0, 1
    assert summary.lines()[2:] == [
        "the target alone: 9 calls, 2.0 s; 1.60 times the time",
        "identical outputs: 1 of 1",
    ]


def test_an_empty_summary():
    assert terminal.Summary().lines() == ["0 texts"]
