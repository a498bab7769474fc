"""Texts and summaries for people, on a hand-made trace: pytest tests/test_terminal.py"""

import io
import re

import pytest

from specdec.common import terminal
from specdec.common.terminal import Origin

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


def test_every_token_is_attributed_and_pieces_concatenate_to_the_text():
    assert marked() == [
        *[(2, A), (4, A), (5, R), (6, T)],
        *[(6, R), (3, T)],
        *[(8, A), (9, A), (5, T)],
        *[(7, A), (1, A)],
    ]
    assert [token for token, origin in marked() if origin is not R] == TOKENS
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


LINE = [("the", A), (" red", A), (" big", R), (" ball", T), ("s", A), (" x", T), ("y", T)]


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def test_paint():
    off = "\x1b[0m"
    green, blue, struck = (f"\x1b[{origin.value}m" for origin in (A, T, R))
    assert terminal.paint(LINE[:5]) == (
        f"{green}the{off} {green}red{off} {struck}[-big-]{off} {blue}{{+ball+}}{off}{green}s{off}"
    )


def test_marks_say_what_colours_say():
    assert terminal.paint(LINE, colour=False) == "the red [-big-] {+ball+}s {+x+}{+y+}"
    assert plain(terminal.paint(LINE)) == terminal.paint(LINE, colour=False)
    assert terminal.paint([("a", Origin.GIVEN), (" b", Origin.GIVEN)], False) == "<a b>"
    assert len({*terminal.MARKS.values()}) == len(Origin)


def test_a_rejected_space_is_seen():
    assert terminal.paint([("a", A), (" ", R), ("b", T), (" ", T), ("c", A)], False) == (
        "a[-_-]{+b+} c"
    )


def test_the_legend_is_in_the_marks_and_colours_it_explains():
    for origin in Origin:
        before, after = terminal.MARKS[origin]
        marked = f"{before}{terminal.LABELS[origin]}{after}"
        assert terminal.paint([(terminal.LABELS[origin], origin)]) in terminal.legend(True)
        assert marked in terminal.legend(True, colour=False)
    assert "given" not in terminal.legend()
    assert max(map(len, plain(terminal.legend(True, columns=30)).splitlines())) <= 30


def luminance(index):
    """Of a colour of the cube of 256, as WCAG 2 has it."""
    sides = (0, 95, 135, 175, 215, 255)
    rgb = [sides[(index - 16) // step % 6] / 255 for step in (36, 6, 1)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("origin", [A, T, R])
def test_colours_are_read_on_black_and_on_white(origin):
    of_this = luminance(int(origin.value.rsplit(";", 1)[1]))
    assert (of_this + 0.05) / 0.05 >= 4.5 and 1.05 / (of_this + 0.05) >= 4.5


def laid_out(line, columns):
    return terminal.lay_out(terminal.words(line, colour=False), columns)[0]


def test_lines_break_between_words_only():
    lines = laid_out(LINE, 12).splitlines()
    assert lines == ["the red", "[-big-]", "{+ball+}s", "{+x+}{+y+}"]
    assert laid_out([("a verylongword b", A)], 6).splitlines() == ["a", "verylongword", "b"]


def test_wide_characters_take_two_columns_and_may_begin_a_line():
    assert terminal.width("語a\u0301") == 3
    assert laid_out([("日本語を話す", A)], 6).splitlines() == ["日本語", "を話す"]
    assert laid_out([("日本", A), ("語", R), ("a", T)], 7).splitlines() == [
        "日本",
        "[-語-]",
        "{+a+}",
    ]


@pytest.mark.parametrize("line", [LINE, [("日本", A), ("語", R), (" を", T), ("話す", A)]])
def test_what_is_written_stays_when_a_line_goes_on(line):
    """A painter writes all but the last word before it knows the rest."""
    whole = terminal.words(line, colour=True)
    for length in range(1, len(line)):
        before = terminal.words(line[:length], colour=True)[:-1]
        assert before == whole[: len(before)]


def test_a_text_stands_under_its_input_after_an_empty_line(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "columns_of", lambda stream: 14)
    painter = terminal.Painter(lambda ids, source: text_of(ids), colour=False)
    row = TOKENS[:3], PROPOSED[:1], DRAFTED[:1], ACCEPTED[:1]
    painter.begin("read: le ballon rouge")
    painter.show(*row)
    painter.end()
    painter.show(*row)  # another output of the same input
    painter.end()
    output = ["the red", "[-big-]", "{+ball+}", "    the red", "    ball"]
    expected = ["", "read: le", "ballon rouge", *output, "", *output]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_painter_writes_the_trace_as_it_grows_and_then_the_text(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "columns_of", lambda stream: 14)
    painter = terminal.Painter(lambda ids, source: text_of(ids), colour=False)
    for calls in range(1, len(DRAFTED) + 1):
        kept = sum(ACCEPTED[:calls]) + calls  # of the tokens, so far
        row = TOKENS[:kept], *(each[:calls] for each in (PROPOSED, DRAFTED, ACCEPTED))
        painter.show(*row)
    grown = capsys.readouterr().out
    painter.end()
    shown = (grown + capsys.readouterr().out).splitlines()
    assert grown and not grown.endswith("s")  # it may go on
    assert shown.pop(0) == ""
    trace, text = (
        [line for line in shown if line.startswith("    ") == indented]
        for indented in (False, True)
    )
    assert trace == laid_out(list(terminal.pieces(marked(), text_of)), 14).splitlines()
    assert [line.split() for line in text] == [["the", "red"], ["ball", "a"], ["falls."], ["bigs"]]


def test_a_line_has_the_columns_of_its_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "33")
    assert terminal.columns_of(Screen()) == 33
    assert terminal.columns_of(io.StringIO()) == float("inf")


def test_a_text_cannot_break_the_line_or_drive_the_terminal():
    nasty = "a\nb\r\tc\x1b[2Jd\u2028e\x9b31m"
    assert terminal.one_line(nasty) == "a b  c [2Jd e 31m"
    assert plain(terminal.paint([(nasty, A)])).split() == terminal.one_line(nasty).split()


def test_a_long_message_keeps_its_begin_and_its_end():
    text = "a" * 1000 + "b" * 1000
    assert terminal.visible(text) == text
    assert terminal.visible(f"{text}c") == f"{'a' * 1000} ... {'b' * 999}c"
    assert terminal.visible("a\nb\x1b[2J\u202e") == r"a\nb\x1b[2J\u202e"


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
        "1 text, 9 tokens, 4 target calls: 2.25 tokens per call, alpha 0.750",
        "1.2 s decoding, 3.0 s compiling",
    ]
    summary.baseline_calls, summary.baseline_seconds, summary.identical = 9, 2.0, 1
    assert summary.lines()[2:] == [
        "4 target calls instead of 9, 1.60 times as fast as the target alone (2.0 s)",
        "the output is identical to the target's",
    ]
    summary.exact = False
    assert summary.lines()[3:] == ["NOT EXACT; 1 of 1 outputs the same by chance"]
    summary.layers = [2, 3, 3, 2]
    assert summary.lines()[0].endswith(", alpha 0.750, 2.50 layers of the target a call")


def test_the_whole_wait_adds_up_as_it_is_printed():
    spent = {"other": 0.26, "starting": 1.04, "reading": 0.04, "compiling": 3.0, "decoding": 0.549}
    summary = terminal.Summary(texts=2, tokens=3, drafted=[1], accepted=[1], seconds=0.5)
    assert summary.lines(spent)[0].startswith("2 texts, 3 tokens, 1 target call: ")
    line = "4.8 s: 1.0 s starting, 3.0 s compiling, 0.5 s decoding, 0.3 s other"
    assert summary.lines(spent)[1] == line
    total, *parts = map(float, re.findall(r"(\d+\.\d) s", line))
    assert round(sum(parts), 1) == total


def test_an_empty_summary():
    assert terminal.Summary().lines() == ["0 texts"]
