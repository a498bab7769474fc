"""Decoded texts for people: which words were drafted, which the target corrected, and a summary."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from specdec.theory import block_efficiency, empirical_alpha


class Origin(enum.Enum):
    """Where a token comes from; the value is its ANSI style. Colours as in Leviathan, figure 1."""

    ACCEPTED = "32"  # green: drafted, and kept by the target
    TARGET = "1;94"  # bold blue: the target's own, a correction or the token after a whole draft
    REJECTED = "2;9;31"  # dim, struck, red: drafted, and replaced by the token that follows
    GIVEN = "4"  # underlined: the prefix that the text had to begin with


LABELS = {
    Origin.ACCEPTED: "drafted and accepted",
    Origin.TARGET: "the target's own",
    Origin.REJECTED: "drafted and rejected",
    Origin.GIVEN: "given",
}

Piece = tuple[str, Origin]


def wants_colour(stream: TextIO, environment=os.environ) -> bool:
    """Whether `stream` is a terminal whose user has not opted out (https://no-color.org)."""
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return stream.isatty() and not plain


def origins(
    tokens: Sequence[int],
    proposed: Sequence[Sequence[int]],
    drafted: Sequence[int],
    accepted: Sequence[int],
    given: int = 0,
) -> Iterator[tuple[int, Origin]]:
    """One row's tokens in order of decision, with the first rejected token of each call.

    Later rejected tokens are left out: they continue a text that does not exist.

    Args:
      tokens: the output, [length].
      proposed, drafted, accepted: the row of a `Trace`, one entry per call.
      given: how many of the tokens were a prefix.
    """
    output = iter(tokens)
    yield from ((token, Origin.GIVEN) for token in itertools.islice(output, given))
    for guesses, tested, kept in zip(proposed, drafted, accepted, strict=True):
        yield from ((token, Origin.ACCEPTED) for token in itertools.islice(output, kept))
        if kept < tested:
            yield guesses[kept], Origin.REJECTED
        yield from ((token, Origin.TARGET) for token in itertools.islice(output, 1))


def pieces(
    marked: Iterable[tuple[int, Origin]], text_of: Callable[[Sequence[int]], str]
) -> Iterator[Piece]:
    """The text that each token adds; all but the rejected ones concatenate to the whole text.

    A token's text depends on what is before it (SentencePiece's first space, bytes of one
    character), so it is the difference of two texts, and not the text of the token.
    """
    kept: list[int] = []
    shown = ""
    for token, origin in marked:
        # An unfinished character reads as U+FFFD; it is shown when its last byte is there.
        text = text_of([*kept, token]).rstrip("\ufffd")
        piece = text[len(shown) :]
        if origin is not Origin.REJECTED:
            kept.append(token)
            shown += piece
        if piece:
            yield piece, origin


def paint(line: Iterable[Piece]) -> str:
    """One coloured line."""
    runs = itertools.groupby(line, key=operator.itemgetter(1))
    return "".join(_styled("".join(text for text, _ in run), origin) for origin, run in runs)


def legend(given: bool = False) -> str:
    """What the colours mean, in those colours; the last one if there are prefixes."""
    shown = [origin for origin in Origin if given or origin is not Origin.GIVEN]
    return "  ".join(_styled(LABELS[origin], origin) for origin in shown)


def one_line(text: str) -> str:
    """`text` without line breaks and control characters: no text can break or drive a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)


def _styled(text: str, origin: Origin) -> str:
    text = one_line(text)
    words = text.lstrip(" ")  # the space before a struck word is not struck
    space = text[: len(text) - len(words)]
    return f"{space}\x1b[{origin.value}m{words}\x1b[0m" if words else space


class Painter:
    """Writes coloured lines to stdout, each of them as it grows."""

    def __init__(self, text_of: Callable[[Sequence[int]], str], given: int = 0):
        self._text_of, self._given = text_of, given
        self._shown = 0  # pieces of the line

    def legend(self) -> str:
        return legend(self._given > 0)

    def show(self, *row: Sequence) -> None:
        """What is new of a row's tokens; arguments as for `origins`."""
        line = list(pieces(origins(*row, given=self._given), self._text_of))
        print(paint(line[self._shown :]), end="", flush=True)
        self._shown = len(line)

    def end(self) -> None:
        print(flush=True)
        self._shown = 0


@dataclasses.dataclass
class Summary:
    """What a run has done so far."""

    texts: int = 0
    tokens: int = 0  # emitted, EOS included, without prefixes
    drafted: list[int] = dataclasses.field(default_factory=list)  # one entry per target call
    accepted: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # decoding
    compile_seconds: float = 0.0
    identical: int = 0  # texts with the baseline's tokens, if it ran
    baseline_calls: int = 0
    baseline_seconds: float = 0.0

    def lines(self) -> list[str]:
        """The closing lines; the baseline's only if it ran."""
        calls = len(self.drafted)
        if not calls:
            return [f"{self.texts} texts"]
        drafted = any(self.drafted)
        lines = [
            f"{self.texts} texts, {self.tokens} tokens, {calls} target calls: "
            f"{block_efficiency(self.tokens, calls):.2f} tokens per call"
            + (f", alpha {empirical_alpha(self.accepted, self.drafted):.3f}" if drafted else ""),
            f"{self.seconds:.1f} s decoding, {self.compile_seconds:.1f} s compiling",
        ]
        if self.baseline_calls:
            lines.append(
                f"the target alone: {self.baseline_calls} calls, {self.baseline_seconds:.1f} s; "
                f"{self.baseline_seconds / self.seconds:.2f} times the time"
            )
            lines.append(f"identical outputs: {self.identical} of {self.texts}")
        return lines
