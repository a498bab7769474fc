"""Decoded texts as notebooks show them."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator

from specdec.common import notebook
from specdec.common.decoded import DecodedText
from specdec.texts import decoding_texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded(DecodedText):
    """One decoded text, with the target calls that made it."""

    input: str  # the input text
    text: str  # the output
    log_prob: float  # the log-probability of its tokens, in nats at temperature 1

    def __repr__(self) -> str:
        return f"Decoded({self.text!r}, {self._counts()})"

    def _repr_html_(self) -> str:
        lines = self.input, f"<b>{html.escape(self.text)}</b>", self._counts()
        return "<br>".join((html.escape(lines[0]), *lines[1:]))

    def _counts(self) -> str:
        calls = f"{self.calls} target call{'s' * (self.calls != 1)}"
        return f"{len(self.tokens)} token{'s' * (len(self.tokens) != 1)} in {calls}"


@dataclasses.dataclass(frozen=True, repr=False)
class Explained:
    """One text, call by call: the words that were drafted, and the decision about each."""

    text: decoding_texts.Text  # the text with all its facts, see `record`

    @property
    def record(self) -> dict[str, object]:
        """All facts as plain values: a line of `specdec decode --explain --output_file`."""
        return self.text.record()

    def _calls(self) -> Iterator[tuple[list[str], int, str]]:
        """Yields each call's drafted words, how many of them were kept, and the target's word."""
        known, at = self.text.explained, 0
        assert known is not None
        tokens = [*known["token_texts"], ""]  # a text may end within a draft
        for words, kept in zip(known["proposed_texts"], self.text.accepted, strict=True):
            at += kept + 1
            yield words, kept, tokens[min(at, len(tokens)) - 1]

    def __repr__(self) -> str:
        lines = [self.text.prediction]
        for number, (words, kept, own) in enumerate(self._calls(), start=1):
            drafted = f"drafted {words}, kept {kept}" if words else "drafted nothing"
            lines.append(f"call {number}: {drafted}, the target's own {own!r}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for number, (words, kept, own) in enumerate(self._calls(), start=1):
            good = notebook.coloured("".join(words[:kept]), notebook.GREEN)
            bad = notebook.coloured("".join(words[kept:]), notebook.RED, struck=True)
            own = notebook.coloured(own, notebook.BLUE)
            rows.append((str(number), good + bad, f"{kept} of {len(words)}", own))
        header = "target call", "drafted", "kept", "the target's own"
        return f"<b>{html.escape(self.text.prediction)}</b>{notebook.table(rows, header)}"
