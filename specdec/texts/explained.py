"""Computes the probabilities p and q that `specdec decode --explain` adds to a text's line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from specdec.common.values import UsageError
from specdec.decoding import Decided, Replay, replay
from specdec.decoding.program import Program
from specdec.plan import Plan
from specdec.texts.decoding_texts import Facts
from specdec.types import Array, DecodeOutput, Params, PyTree, Row

DIGITS = 6


def replayer(plan: Plan, *, mesh: Mesh | None = None, prefix: Array | None = None) -> Program:
    """Returns a program (params, keys [B], (inputs, Decided)) -> `decoding.Replay` with p and q."""
    if plan.drafter.paths:
        raise UsageError(
            f"{type(plan.drafter).__name__} drafts {plan.drafter.paths} paths, and only the "
            "accepted path is recorded; explain with --drafter=autoregressive"
        )

    def again(params: Params, keys: Array, batch: tuple[PyTree, Decided]) -> Replay:
        inputs, decided = batch
        return replay(params, keys, inputs, decided, plan=plan, prefix=prefix)

    return Program(again, mesh=mesh)


class ExplainedBatch(NamedTuple):
    """A decoded batch with the probabilities p and q of its tokens."""

    plan: Plan
    text_of: Callable[[Sequence[int], str], str]  # (output ids, input text) -> output text
    given: int  # tokens of the prefix
    output: DecodeOutput
    replay: Replay
    seconds: float  # of decoding the batch

    def explained(self, row: int, source: str) -> Facts:
        """Returns the field `explained` of a row's JSON line; `source` is the row's input text."""
        of_row = jax.tree.map(lambda x: x[row], self.replay)

        def text_of(tokens: Sequence[int]) -> str:
            return self.text_of(tokens, source)

        calls = list(_calls(self.output.row(row), self.given))
        return {
            "plan": str(self.plan),
            "given": self.given,
            "stop_ids": list(self.plan.stop_ids),
            "batch": {
                "seconds": _number(self.seconds),
                "rows": len(self.output.length),
                "calls": int(self.output.trace.steps),
            },
            "token_texts": _texts([], self.output.row(row).tokens, text_of),
            "proposed": [call.proposed for call in calls],
            "proposed_texts": [_texts(call.before, call.proposed, text_of) for call in calls],
            "p": _drafted(of_row.p, calls),
            "q": _drafted(of_row.q, calls),
            "softmax": _drafted(of_row.softmax, calls),
            "own_p": _own(of_row.own_p, calls),
            "own_q": _own(of_row.own_q, calls),
        }


class _Call(NamedTuple):
    before: list[int]  # the output tokens before the call
    proposed: list[int]
    has_own: bool  # whether the target's token follows the accepted tokens


def _calls(row: Row, start: int) -> Iterator[_Call]:
    at = start
    for proposed, drafted, accepted in zip(row.proposed, row.drafted, row.accepted, strict=True):
        end = at + accepted
        yield _Call(row.tokens[:at], proposed[:drafted], end < len(row.tokens))
        at = end + 1


def _texts(before: Sequence[int], tokens: Sequence[int], text_of) -> list[str]:
    """Returns the text that each token adds; a character of several tokens is at its last one.

    A token that begins the text with a space has that space, which decoding leaves out.
    """
    ends = range(len(tokens) + 1)
    # Unfinished characters are decoded as U+FFFD.
    shown = [text_of([*before, *tokens[:end]]).rstrip("\ufffd") for end in ends]
    texts = [new[len(old) :] for old, new in itertools.pairwise(shown)]
    words = [token for token in tokens if _is_word(text_of([token, token]))]
    for place, text in enumerate(texts):
        if not text and words and _is_space(tokens[place], words[0], text_of):
            texts[place] = " "
            if texts[place + 1 :] and texts[place + 1].startswith(" "):
                texts[place + 1] = texts[place + 1][1:]
    return texts


def _is_word(text: str) -> bool:
    """Returns whether a text, a token twice, has something to see and no space."""
    return text.isprintable() and bool(text) and " " not in text and "\ufffd" not in text


def _is_space(token: int, word: int, text_of) -> bool:
    """Returns whether a token stands for a space, which shows only between words."""
    apart, together = text_of([word, token, word]), text_of([word, word])
    return apart != together and apart.replace(" ", "", 1) == together


def _drafted(values: np.ndarray, calls: Sequence[_Call]) -> list[list[float | None]]:
    return [
        [_number(value) for value in of_call[: len(call.proposed)]]
        for of_call, call in zip(values, calls, strict=False)
    ]


def _own(values: np.ndarray, calls: Sequence[_Call]) -> list[float | None]:
    return [
        _number(value) if call.has_own else None for value, call in zip(values, calls, strict=False)
    ]


def _number(value: float) -> float | None:
    """Returns a number rounded to six significant digits; None for NaN, which JSON lacks."""
    return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
