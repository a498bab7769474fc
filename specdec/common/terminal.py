"""Decoded texts on a terminal: drafted words, the target's corrections, and a summary."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import operator
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, TextIO

from specdec.common.progress import OTHER
from specdec.common.theory import block_efficiency, empirical_alpha

LONGEST = 2000  # characters of a message
_CONTROLS, _TURNS = r"\x00-\x1f\x7f-\x9f\u2028\u2029", r"\u202a-\u202e\u2066-\u2069"


class Origin(enum.Enum):
    """The origin of a token; the value is its ANSI style. Colours as in Leviathan, figure 1.

    The colours are among the 256 whose contrast is 4.5 or more both on black and on white (WCAG 2).
    The 16 basic colours depend on the user's theme. `MARKS` show the same without colours.
    """

    ACCEPTED = "38;5;29"  # green: drafted, and kept by the target
    TARGET = "1;38;5;63"  # bold blue: the target's own, a correction or the token after the draft
    REJECTED = "38;5;131"  # red: drafted, and replaced by the token that follows
    GIVEN = "4"  # underlined: the prefix that the text had to begin with


LABELS = {
    Origin.ACCEPTED: "drafted and accepted",
    Origin.TARGET: "the target's own",
    Origin.REJECTED: "drafted and rejected",
    Origin.GIVEN: "given",
}

# Before and after, as `git diff --word-diff` has them.
MARKS = {
    Origin.ACCEPTED: ("", ""),
    Origin.TARGET: ("{+", "+}"),
    Origin.REJECTED: ("[-", "-]"),
    Origin.GIVEN: ("<", ">"),
}

INDENT = "    "  # before the lines of the plain text

Piece = tuple[str, Origin | None]  # None: neither marks nor a colour


def wants_colour(stream: TextIO, environment=os.environ) -> bool:
    """Returns whether `stream` is a terminal whose user allows colours (https://no-color.org)."""
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return stream.isatty() and not plain


def origins(
    tokens: Sequence[int],
    proposed: Sequence[Sequence[int]],
    drafted: Sequence[int],
    accepted: Sequence[int],
    prefix: int = 0,
) -> Iterator[tuple[int, Origin]]:
    """Yields (token, origin) for a row's tokens and for the first rejected token of each call.

    Later rejected tokens are left out: they continue a text that does not exist.
    """
    output = iter(tokens)
    yield from ((token, Origin.GIVEN) for token in itertools.islice(output, prefix))
    for guesses, tested, right in zip(proposed, drafted, accepted, strict=True):
        yield from ((token, Origin.ACCEPTED) for token in itertools.islice(output, right))
        if right < tested:
            yield guesses[right], Origin.REJECTED
        yield from ((token, Origin.TARGET) for token in itertools.islice(output, 1))


def pieces(
    marked: Iterable[tuple[int, Origin]], text_of: Callable[[Sequence[int]], str]
) -> Iterator[Piece]:
    """Yields (text that a token adds, origin). Without rejected ones, the texts join to the output.

    A token's text depends on those before it: SentencePiece's first space, bytes of one character.
    It is therefore computed as the difference of two texts.
    """
    output: list[int] = []
    shown = ""
    for token, origin in marked:
        # An unfinished character reads as U+FFFD; it is shown when its last byte is there.
        text = text_of([*output, token]).rstrip("\ufffd")
        piece = text[len(shown) :]
        if origin is not Origin.REJECTED:
            output.append(token)
            shown += piece
        if piece:
            yield piece, origin


def paint(line: Iterable[Piece], colour: bool = True) -> str:
    """Returns one line of pieces with their marks, and with colours if they are wanted."""
    return lay_out(words(line, colour))[0]


def legend(prefix: bool = False, colour: bool = True, columns: float = math.inf) -> str:
    """Returns a line that explains the marks and colours, written in them."""
    shown = [origin for origin in Origin if prefix or origin is not Origin.GIVEN]
    line = [part for origin in shown for part in ((LABELS[origin], origin), (", ", None))]
    return lay_out(words(line[:-1], colour), columns)[0]


def columns_of(stream: TextIO) -> float:
    """Returns the width of a terminal in characters; infinity for other streams."""
    return shutil.get_terminal_size().columns if stream.isatty() else math.inf


class Word(NamedTuple):
    """A word of a line, in which no line break is made."""

    text: str  # with marks and colours
    width: int  # columns
    space: bool  # whether a space precedes it


def words(line: Iterable[Piece], colour: bool) -> list[Word]:
    """Splits pieces into words. If pieces follow, all words but the last one stay the same."""
    result: list[Word] = []
    space = breaks = False
    for text, origin in _runs(line):
        for atom in _atoms(text, origin):
            if atom == " ":
                space = True
                continue
            size, wide = width(atom), any(map(_is_wide, atom))
            styled = f"\x1b[{origin.value}m{atom}\x1b[0m" if colour and origin else atom
            if not result or space or breaks or wide:
                result.append(Word(styled, size, space))
            else:
                last = result[-1]
                result[-1] = Word(last.text + styled, last.width + size, last.space)
            space, breaks = False, wide
    return result


def lay_out(words: Iterable[Word], columns: float = math.inf, column: int = 0) -> tuple[str, int]:
    """Breaks words into lines of `columns`; returns the text and its last line's width."""
    text = ""
    for word in words:
        gap = int(word.space and column > 0)
        if column and column + gap + word.width > columns:
            text, column, gap = text + "\n", 0, 0
        text += " " * gap + word.text
        column += gap + word.width
    return text, column


def width(text: str) -> int:
    """Returns the number of terminal columns that a text fills."""
    return sum(0 if _is_combined(character) else 1 + _is_wide(character) for character in text)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"


def _is_combined(character: str) -> bool:
    """Returns whether a character is an accent or joiner, which takes no column of its own."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def one_line(text: str) -> str:
    """Replaces line breaks and control characters, so that no text can control a terminal."""
    return re.sub(f"[{_CONTROLS}]", " ", text)


def visible(message: object) -> str:
    """Returns a message with its control characters escaped, shortened to `LONGEST` characters."""
    text = str(message)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return re.sub(f"[{_CONTROLS}{_TURNS}]", lambda match: ascii(match[0])[1:-1], text)


def _runs(line: Iterable[Piece]) -> Iterator[Piece]:
    """Joins neighbouring pieces of one origin, but not the target's own and rejected ones."""
    for origin, run in itertools.groupby(line, key=operator.itemgetter(1)):
        texts = [one_line(text) for text, _ in run]
        single = origin in (Origin.TARGET, Origin.REJECTED)
        for text in texts if single else ["".join(texts)]:
            yield text, origin


def _atoms(text: str, origin: Origin | None) -> list[str]:
    """Splits a text into spaces, wide characters and runs of others, with the origin's marks."""
    if origin is Origin.REJECTED and not text.strip(" "):
        text = "_"  # makes a rejected space visible
    atoms: list[str] = []
    for character in text:
        before = atoms[-1] if atoms else " "
        joins = before != " " and not (_is_wide(character) or _is_wide(before[0]))
        if character != " " and (joins or _is_combined(character)) and atoms:
            atoms[-1] += character
        else:
            atoms.append(character)
    marked = [index for index, atom in enumerate(atoms) if atom != " "]
    if origin and marked:
        before, after = MARKS[origin]
        atoms[marked[0]] = before + atoms[marked[0]]
        atoms[marked[-1]] += after
    return atoms


class Painter:
    """Writes a text to stdout as it grows, with the origin of each word, then the plain text."""

    def __init__(
        self, text_of: Callable[[Sequence[int], str], str], prefix: int = 0, colour: bool = True
    ):
        self._text_of, self._prefix, self._colour = text_of, prefix, colour
        self._source = ""
        self._reset()

    def legend(self) -> str:
        return legend(self._prefix > 0, self._colour, columns_of(sys.stdout))

    def begin(self, text: str) -> None:
        """Prints the input of a new output."""
        print()
        self._columns, self._begun, self._source = columns_of(sys.stdout), True, text
        print(lay_out(words([(text, None)], colour=False), self._columns)[0], flush=True)

    def show(self, tokens: Sequence[int], *trace: Sequence) -> None:
        """Prints the new words of a row's tokens; `trace` has the other arguments of `origins`."""
        if not self._begun:  # another output of the same input
            print()
            self._begun = True
        line = pieces(origins(tokens, *trace, prefix=self._prefix), self._shown)
        self._tokens, self._words = tokens, words(line, self._colour)
        self._write(self._words[self._written : -1])

    def end(self) -> None:
        """Prints the last words, and then the plain text."""
        self._write(self._words[self._written :])
        text = words([(self._shown(self._tokens), None)], colour=False)
        lines = lay_out(text, self._columns - len(INDENT))[0].split("\n")
        print("", *(INDENT + line for line in lines), sep="\n", flush=True)
        self._reset()

    def _shown(self, tokens: Sequence[int]) -> str:
        return self._text_of(tokens, self._source)

    def _reset(self) -> None:
        self._columns, self._begun = columns_of(sys.stdout), False
        self._tokens: Sequence[int] = ()
        self._words: list[Word] = []
        self._written = self._column = 0

    def _write(self, new: Sequence[Word]) -> None:
        text, self._column = lay_out(new, self._columns, self._column)
        print(text, end="", flush=True)
        self._written += len(new)


@dataclasses.dataclass
class Summary:
    """The figures that a command prints at its end."""

    texts: int = 0
    tokens: int = 0  # emitted, EOS included, without prefixes
    drafted: list[int] = dataclasses.field(default_factory=list)  # one entry per target call
    accepted: list[int] = dataclasses.field(default_factory=list)
    layers: list[int] = dataclasses.field(default_factory=list)  # of a target with early exits
    seconds: float = 0.0  # decoding
    compile_seconds: float = 0.0
    broken_drafts: int = 0  # drafts that the loop ended early, see `Trace`
    identical: int = 0  # texts with the baseline's tokens, if it ran
    exact: bool = True  # whether outputs have the target's law
    baseline_calls: int = 0
    baseline_seconds: float = 0.0

    def lines(self, spent: Mapping[str, float] = {}) -> list[str]:
        """Returns the lines printed at a command's end; `spent` has seconds by stage."""
        calls = len(self.drafted)
        if not calls:
            return [counted(self.texts, "text")]
        drafted = any(self.drafted)
        lines = [
            f"{counted(self.texts, 'text')}, {counted(self.tokens, 'token')}, "
            f"{counted(calls, 'target call')}: "
            f"{block_efficiency(self.tokens, calls):.2f} tokens per call"
            + (f", alpha {empirical_alpha(self.accepted, self.drafted):.3f}" if drafted else "")
            + (f", {fmean(self.layers):.2f} layers of the target a call" if self.layers else ""),
            whole(spent)
            or f"{self.seconds:.1f} s decoding, {self.compile_seconds:.1f} s compiling",
        ]
        if self.broken_drafts:
            lines.append(
                f"{self.broken_drafts} of {calls} drafts ended early, because the drafter's "
                "probabilities were not a distribution (NaN, infinite, negative or of a wrong "
                "sum); check its checkpoint"
            )
        if self.baseline_calls:
            lines.append(
                f"{counted(calls, 'target call')} instead of {self.baseline_calls}, "
                f"{self.baseline_seconds / self.seconds:.2f} times as fast as the target alone "
                f"({self.baseline_seconds:.1f} s)"
            )
            lines.append(self._same())
        return lines

    def _same(self) -> str:
        same = self.identical == self.texts
        if not self.exact:
            return f"NOT EXACT; {self.identical} of {self.texts} outputs the same by chance"
        if self.texts == 1:
            return f"the output {'is identical to' if same else 'differs from'} the target's"
        if same:
            return f"all {self.texts} outputs identical to the target's"
        return f"{self.identical} of {self.texts} outputs identical to the target's"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 text", "2 texts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def whole(spent: Mapping[str, float]) -> str:
    """Returns a text of the seconds by stage and of their sum, which add up as printed."""
    tenths = {name: round(10 * seconds) for name, seconds in spent.items()}
    parts = sorted((name for name in tenths if tenths[name]), key=lambda name: name == OTHER)
    shown = (f"{tenths[name] / 10:.1f} s {name}" for name in parts)
    return f"{sum(tenths.values()) / 10:.1f} s: {', '.join(shown)}" if parts else ""
