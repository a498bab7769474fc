"""Acceptance measured on recorded texts: the record of one text, and the means over all texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple, Required, TypeAlias, TypedDict

import numpy as np
from msgspec import Meta

from specdec.common.json_values import record_of
from specdec.common.schemas import Amount, Count, OneOrMore
from specdec.common.statistics import Estimate, estimates
from specdec.common.tables import columns
from specdec.common.terminal import counted
from specdec.measure.opinions import LENIENCE

MaybeId: TypeAlias = Annotated[int, Meta(ge=-1)]
Amounts: TypeAlias = list[Amount | list[Amount]]  # a figure is a list for a drafter of blocks


class DrafterRecording(TypedDict, total=False):
    """The figures of one drafter in a line of recorded texts, as in `Accepted.drafts`."""

    proposed: Required[list[MaybeId | list[MaybeId]]]
    ratio: Amounts
    refused: Amounts
    confidence: Amounts
    entropy: Amounts
    top: list[Amounts]


class Accepted(NamedTuple):
    """One text that the target wrote, and the figures of each drafter at its tokens.

    Attributes:
      index: The example's place in its split, or the text's place in a file, from 0.
      tokens: The number of tokens of the target's output.
      accepted: For each drafter (model is the run's drafter; --tables adds unigram and bigram), a
        list over the leniences l, descending from 1, of sums over the output's tokens of sum_x
        min(p(x) / l, q(x)). A sum divided by `tokens` is alpha.
      inputs: The input's token ids, without padding.
      output: The target's token ids, with EOS unless the output was cut at the maximum length.
      drafts: Figures of each drafter whose distribution q depends only on the preceding text. Its
        key is its class, after its field if it is inside another drafter ('second
        Autoregressive'). Each figure is a list over the output's tokens y. `proposed` is the
        argmax of q, -1 for no proposal. `confidence` is the probability of y if the drafter
        samples, else the softmax probability of `proposed`. `entropy` is in nats, and `top` holds
        the ten largest probabilities, descending. A drafter that samples also has `ratio`, which
        is q(y) / p(y), and `refused`, which is q of a token that was drawn and rejected. If the
        drafter proposes blocks, each figure is a list over the block's positions.
      proposes: The number of output tokens at which the run's drafter proposes a token.
      depths: For each output token, the number of target layers that computed it; absent if every
        token uses all layers.
    """

    index: Count
    tokens: OneOrMore
    accepted: Annotated[
        dict[str, list[float]], dict[str, Annotated[list[Amount], Meta(min_length=1)]]
    ]
    inputs: Sequence[Count] = ()
    output: Sequence[Count] = ()
    drafts: Annotated[
        Mapping[str, Mapping[str, Sequence[float | Sequence[float]]]], dict[str, DrafterRecording]
    ] = MappingProxyType({})
    proposes: Count = 0
    depths: Sequence[OneOrMore] = ()

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Accepted:
        """Returns the text of a line; raises ValueError or TypeError if its fields do not fit."""
        text = record_of(cls, fields)
        fits = [len(LENIENCE) == len(sums) for sums in text.accepted.values()]
        rows = [row for kinds in text.drafts.values() for row in kinds.values()]
        fits += [len(row) == text.tokens for row in (text.output, *rows)]
        if text.output and not (text.accepted and all(fits)):  # the first version had none
            raise ValueError("has lists of other lengths than its tokens")
        return text

    def kept(self, name: str, kind: str) -> np.ndarray:
        """Returns min(1, ratio) at each token, or whether `proposed` is the token, by `kind`."""
        recording = np.array(self.drafts[name][kind])
        if kind == "ratio":
            return np.minimum(recording, 1)
        return recording == np.reshape(self.output, (-1, *[1] * (recording.ndim - 1)))


@dataclasses.dataclass(frozen=True)
class AcceptanceSummary:
    """Acceptance rates over all recorded texts."""

    texts: int  # the number of texts
    tokens: int  # the number of output tokens of all texts
    alphas: Mapping[str, Mapping[float, Estimate]]  # drafter -> lenience -> alpha
    proposes: float  # the share of output tokens at which the drafter proposes a token
    layers: float | None = None  # the target's layers per token, mean; None if always all layers

    def record(self) -> Mapping[str, object]:
        """Returns all fields as values that JSON can hold."""
        alphas = {
            name: [{"lenience": lenience, **alpha._asdict()} for lenience, alpha in rates.items()]
            for name, rates in self.alphas.items()
        }
        fields = {name: getattr(self, name) for name in ("texts", "tokens", "proposes", "layers")}
        return fields | {"alphas": alphas}


def summarize(records: Iterable[Accepted]) -> AcceptanceSummary:
    """Returns the acceptance rates over all tokens, with intervals of a bootstrap over texts."""
    # Texts are resampled, because tokens of one text are not independent.
    records = list(records)
    if not records:
        raise ValueError("no text was written, so nothing is accepted; give at least one input")
    tokens = np.array([text.tokens for text in records])
    alphas = {}
    for name in records[0].accepted:
        accepted = np.transpose([text.accepted[name] for text in records])  # [L, texts]
        means = estimates(np.vstack([accepted, tokens]), lambda sums: sums[:-1] / sums[-1])
        alphas[name] = dict(zip(LENIENCE, means, strict=True))
    proposes = sum(text.proposes for text in records) / int(tokens.sum())
    depths = [depth for text in records for depth in text.depths]
    layers = sum(depths) / len(depths) if depths else None
    return AcceptanceSummary(len(records), int(tokens.sum()), alphas, proposes, layers)


def lines(summary: AcceptanceSummary) -> Iterator[str]:
    """Yields the lines that `specdec acceptance` prints: counts, then alpha by drafter."""
    yield f"{summary.tokens} tokens of {counted(summary.texts, 'text')} that the target wrote"
    if summary.layers is not None:
        yield f"a token goes through {summary.layers:.2f} of the target's layers, on average"
    if not summary.proposes:
        yield "the drafter proposes nothing at any of these tokens"
        return
    rows = [("drafter", "alpha", "  95 % interval", *(f"l = {x:g}" for x in LENIENCE[1:]))]
    for name, alphas in summary.alphas.items():
        exact, *others = alphas.values()
        interval = f"  {exact.interval('.3f')}"
        rows.append((name, f"{exact.value:.3f}", interval, *(f"{x.value:.3f}" for x in others)))
    yield from columns(rows, "10", ">8", "18", ">10")
    if summary.proposes < 1:
        yield f"drafts exist at {summary.proposes:.1%} of the tokens; alpha counts 0 elsewhere"
