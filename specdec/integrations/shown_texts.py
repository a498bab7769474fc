"""Models and decoded texts in the form in which notebooks show them."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Mapping

from specdec.common import notebook
from specdec.common.decoded import DecodedText
from specdec.engine import Engine
from specdec.texts import decoding_texts
from specdec.texts.measured_run import parameter_counts


class ShownPair:
    """The base of `InteractiveModel` that prints its models, settings and lengths."""

    _engine: Engine
    _lengths: Mapping[str, int]

    def _facts(self) -> list[tuple[str, str]]:
        engine, plan = self._engine, self._engine.plan
        facts = []
        for role, count in parameter_counts(plan.models()).items():
            dtype = plan.models()[role].dtype
            facts.append((role, f"{count / 1e6:.1f}M parameters, {dtype}, {engine.weights[role]}"))
        if not plan.exact:
            output = "NOT EXACT: another distribution than the target's"
        elif plan.same_output:
            output = "exact: the tokens of the target alone"
        else:
            output = "exact: the distribution of the target alone"
        rows = f"{engine.rows} text{'s' * (engine.rows != 1)} at a time"
        sizes = f"inputs of {self._lengths['inputs']} tokens, outputs of {plan.max_length}, {rows}"
        return [*facts, ("decoding", str(plan)), ("output", output), ("at most", sizes)]

    def __repr__(self) -> str:
        lines = (f"  {name:10}{value}" for name, value in self._facts())
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        rows = [(name, html.escape(value)) for name, value in self._facts()]
        return f"<b>{type(self).__name__}</b>{notebook.table(rows)}"


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
        for words, accepted in zip(known["proposed_texts"], self.text.accepted, strict=True):
            at += accepted + 1
            yield words, accepted, tokens[min(at, len(tokens)) - 1]

    def __repr__(self) -> str:
        lines = [self.text.prediction]
        for number, (words, accepted, last) in enumerate(self._calls(), start=1):
            drafted = f"drafted {words}, kept {accepted}" if words else "drafted nothing"
            lines.append(f"call {number}: {drafted}, the target's own {last!r}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for number, (words, accepted, last) in enumerate(self._calls(), start=1):
            good = notebook.coloured("".join(words[:accepted]), notebook.GREEN)
            bad = notebook.coloured("".join(words[accepted:]), notebook.RED, struck=True)
            last = notebook.coloured(last, notebook.BLUE)
            rows.append((str(number), good + bad, f"{accepted} of {len(words)}", last))
        header = "target call", "drafted", "kept", "the target's own"
        return f"<b>{html.escape(self.text.prediction)}</b>{notebook.table(rows, header)}"
