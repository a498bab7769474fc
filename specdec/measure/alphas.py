"""The record of a text, and the figures of all texts."""

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
    """The recording of a drafter in a line."""

    proposed: Required[list[MaybeId | list[MaybeId]]]
    ratio: Amounts
    refused: Amounts
    confidence: Amounts
    entropy: Amounts
    top: list[Amounts]


class Accepted(NamedTuple):
    """One recorded text: sums of sum_x min(p(x) / l, q(x)) by drafter, and data for a replay.

    Attributes:
      index: The example's place in its split, or the text's among those given, from 0.
      tokens: Tokens of the text that the target wrote.
      accepted: Of each drafter (model, the run's own, and with --tables unigram and bigram): for
        each lenience l, in descending order from 1, the sum over the text's tokens of sum_x
        min(p(x) / l, q(x)). Over tokens it is alpha.
      inputs: The input's token ids, without padding.
      output: The target's token ids, with its EOS unless the text was cut at the longest length.
      drafts: Of each drafter whose distribution depends on the text before a token alone, by its
        class and, of one that is made of others, its field ('second Autoregressive'): `proposed`,
        for each token of the output the id that it finds most likely given the true text before, -1
        for none; and `ratio`, if it draws, q(y) / p(y) of the output's own token y. `confidence`
        and `entropy` are what a stopping rule would see: the probability of y if the drafter draws,
        else of `proposed` by its softmax, the entropy of the distribution in nats, and `top`, its
        ten greatest probabilities, descending. `refused`, if it draws, is the probability of a
        token that is drawn and refused there. Of a drafter of blocks, each figure is a list, of the
        places of a block that begins there. Empty of a drafter that copies.
      proposes: Tokens of the output at which the run's drafter proposes one.
      depths: Of each token of the output, how many of the target's layers it went through; absent
        where tokens go through all.
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
        """Returns the text of a line; raises ValueError or TypeError for one of something else."""
        text = record_of(cls, fields)
        fits = [len(LENIENCE) == len(sums) for sums in text.accepted.values()]
        rows = [row for kinds in text.drafts.values() for row in kinds.values()]
        fits += [len(row) == text.tokens for row in (text.output, *rows)]
        if text.output and not (text.accepted and all(fits)):  # the first version had none
            raise ValueError("has lists of other lengths than its tokens")
        return text

    def kept(self, name: str, kind: str) -> np.ndarray:
        """Returns the probability that a drafter's proposal at each token is accepted."""
        recording = np.array(self.drafts[name][kind])
        if kind == "ratio":
            return np.minimum(recording, 1)
        return recording == np.reshape(self.output, (-1, *[1] * (recording.ndim - 1)))


@dataclasses.dataclass(frozen=True)
class AcceptanceSummary:
    """The figures of all texts."""

    texts: int
    tokens: int
    alphas: Mapping[str, Mapping[float, Estimate]]  # drafter -> lenience -> a mean over tokens
    proposes: float  # the share of the tokens at which the drafter proposes one
    # of the target, the mean over tokens; None if all tokens go through all layers
    layers: float | None = None

    def record(self) -> Mapping[str, object]:
        """Returns plain values, for JSON."""
        alphas = {
            name: [{"lenience": lenience, **alpha._asdict()} for lenience, alpha in rates.items()]
            for name, rates in self.alphas.items()
        }
        fields = {name: getattr(self, name) for name in ("texts", "tokens", "proposes", "layers")}
        return fields | {"alphas": alphas}


def summarize(records: Iterable[Accepted]) -> AcceptanceSummary:
    """Returns the means over all tokens, with intervals of a bootstrap over texts."""
    # Texts are resampled, because tokens of one text are not independent.
    records = list(records)
    if not records:
        raise ValueError("no text was written, so nothing is accepted; give some inputs")
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
    """Yields the figures as lines of text."""
    yield f"{summary.tokens} tokens of {counted(summary.texts, 'text')} that the target wrote"
    if summary.layers is not None:
        yield f"a token goes through {summary.layers:.2f} layers, mean"
    if not summary.proposes:
        yield "nothing is proposed at any of them"
        return
    rows = [("drafter", "alpha", "  95 % interval", *(f"l = {x:g}" for x in LENIENCE[1:]))]
    for name, alphas in summary.alphas.items():
        exact, *others = alphas.values()
        interval = f"  {exact.interval('.3f')}"
        rows.append((name, f"{exact.value:.3f}", interval, *(f"{x.value:.3f}" for x in others)))
    yield from columns(rows, "10", ">8", "18", ">10")
    if summary.proposes < 1:
        yield f"it proposes at {summary.proposes:.1%} of the tokens; alpha counts the others as 0"
