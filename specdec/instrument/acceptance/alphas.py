"""The record of a text, and the figures of all texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from specdec.common.json_values import record_of
from specdec.common.statistics import Estimate, estimates
from specdec.common.terminal import counted
from specdec.instrument.acceptance.opinions import LENIENCE


class Accepted(NamedTuple):
    """One recorded text: sums of sum_x min(p(x) / l, q(x)) by drafter, and data for a replay."""

    index: int
    tokens: Annotated[int, Meta(ge=1)]
    accepted: dict[str, list[float]]  # name -> [L], in the order of LENIENCE
    inputs: Sequence[int] = ()  # ids, without padding
    output: Sequence[int] = ()  # ids, with the stop id that ends it
    # Name (`opinions.recorded`) -> "proposed" and, of sampled texts, "ratio": [tokens] each.
    drafts: Mapping[str, Mapping[str, Sequence[float | Sequence[float]]]] = MappingProxyType({})
    proposes: int = 0  # tokens at which the drafter proposes one
    depths: Sequence[int] = ()  # the layers of each token, of a target whose tokens may leave

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Accepted:
        """Returns the text of a line; raises ValueError or TypeError for one of something else."""
        one = record_of(cls, fields)
        counted = [len(LENIENCE) == len(sums) for sums in one.accepted.values()]
        rows = [row for kinds in one.drafts.values() for row in kinds.values()]
        counted += [len(row) == one.tokens for row in (one.output, *rows)]
        if one.output and not (one.accepted and all(counted)):  # the first version had none
            raise ValueError("has lists of other lengths than its tokens")
        return one

    def kept(self, name: str, kind: str) -> np.ndarray:
        """Returns the probability that a drafter's proposal at each token is accepted."""
        said = np.array(self.drafts[name][kind])
        if kind == "ratio":
            return np.minimum(said, 1)
        return said == np.reshape(self.output, (-1, *[1] * (said.ndim - 1)))


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
            name: [{"lenience": lenience, **one._asdict()} for lenience, one in found.items()]
            for name, found in self.alphas.items()
        }
        fields = {name: getattr(self, name) for name in ("texts", "tokens", "proposes", "layers")}
        return fields | {"alphas": alphas}


def summarize(records: Iterable[Accepted]) -> AcceptanceSummary:
    """Returns the means over all tokens, with intervals of a bootstrap over texts.

    Texts are resampled because tokens of one text are not independent. The n-gram tables are not
    counted again for each resample.
    """
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
    lenient = "".join(f"{f'l = {lenience:g}':>10}" for lenience in LENIENCE[1:])
    yield f"{'drafter':10}{'alpha':>8}  {'95 % interval':16}{lenient}"
    for name, alphas in summary.alphas.items():
        exact, *others = alphas.values()
        figures = "".join(f"{alpha.value:10.3f}" for alpha in others)
        yield f"{name:10}{exact.value:8.3f}  {exact.interval('.3f'):16}{figures}"
    if summary.proposes < 1:
        yield f"it proposes at {summary.proposes:.1%} of the tokens; alpha counts the others as 0"
