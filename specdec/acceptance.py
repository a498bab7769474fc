"""The papers' alpha: how much of a draft the target accepts, on texts the target wrote alone.

Leviathan, Kalman and Matias (2211.17192), tables 3 and 5. The target writes texts by itself; then
every drafter is asked, at each of their tokens, for its distribution q, and

    alpha(l) = mean over tokens of sum_x min(p(x) / l, q(x))

with p the target's distribution and lenience l (their appendix A.5), which is 1 where the output is
to be exact. Greedily q is one token, which counts

    l = 1   if it is the argmax of the target's logits
    l < 1   if softmax(logits) is at least l times its maximum there

(the paper prints "at most", by which l = 1 would accept everything). Letters as in `types`, and L,
the number of leniences.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding import decode, row_keys
from specdec.plan import Plan
from specdec.sampling import Greedy, fit_vocabulary
from specdec.statistics import bootstrap
from specdec.types import Array, Params, PyTree, Target

LENIENCE = (1.0, 0.5, 0.3, 0.1)


class Texts(NamedTuple):
    """A batch that the target wrote. Rows of length 0 do not count."""

    index: np.ndarray  # [B] int32, the example's place in the split
    inputs: np.ndarray  # [B, S] int32
    tokens: np.ndarray  # [B, 1+N] int32, the start token first
    length: np.ndarray  # [B] output tokens, EOS included


class Accepted(NamedTuple):
    """One text: for each drafter, the sums over its tokens of sum_x min(p(x) / l, q(x))."""

    index: int
    tokens: int
    accepted: dict[str, list[float]]  # name -> [L], in the order of LENIENCE


class Alpha(NamedTuple):
    """A mean over tokens, and its 95 % interval."""

    lenience: float
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """alphas: drafter -> one for each lenience."""

    texts: int
    tokens: int
    alphas: Mapping[str, Sequence[Alpha]]


def check(plan: Plan) -> None:
    """Raises ValueError for a drafter that has no distribution of its own at every token."""
    if len(plan.models()) != 2 or not hasattr(plan.drafter, "sampling"):
        raise ValueError(
            f"the drafter is {type(plan.drafter).__name__}, which has no distribution at every "
            "token; give one that is a model, with gin/drafters/autoregressive.gin"
        )


def generate(
    plan: Plan,
    params: PyTree,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    seed: int,
    tokens: int,
    skip: Collection[int] = (),
) -> Iterator[Texts]:
    """Texts of the target alone, with its parameters, until they hold so many tokens.

    Whole texts count, and which ones does not depend on the batch size: of the last batch only the
    rows that were still needed.

    Args:
      plan: with the target; nothing is drafted.
      batches: pairs of `Texts.index` and `Texts.inputs`.
      skip: indices of texts that count no more, because they have been measured before.
    """
    alone, batches = plan.alone(), iter(batches)
    while tokens > 0 and (batch := next(batches, None)):
        index, inputs = batch
        new = ~np.isin(index, list(skip))
        if new.any():
            keys, given = row_keys(seed, jnp.asarray(index)), jnp.asarray(inputs)
            output = decode(Params(params), keys, given, alone)
            length = np.where(new, output.length, 0)
            length = np.where(np.cumsum(length) - length < tokens, length, 0)
            start = np.asarray(alone.target.start(given))
            written = np.concatenate([start[:, None], output.tokens], axis=1)
            yield Texts(index, inputs, written, length)
            tokens -= int(length.sum())


def measure(
    plan: Plan, params: Params, texts: Iterable[Texts], *, tables: bool
) -> Iterator[Accepted]:
    """What each drafter would have had accepted, text by text: the plan's 'model', and with
    `tables` also a 'unigram' and a 'bigram' counted from the target's texts.

    No table has seen the text that it is asked about: the odd texts' are counted from the even
    ones, and the other way round, so each from about half of the tokens. (`texts` is then read to
    its end before anything is measured.) Of greedy texts the table's most likely token counts.
    """
    texts = list(texts) if tables else texts
    halves: list[Tables] = []
    written = 0
    for batch in texts:
        fed = batch.tokens[:, :-1]
        p, likely, q = _forced(params, batch.inputs, fed, plan=plan)
        proposals = {"model": q}
        if tables:
            if not halves:
                rows = [row for one in texts for row in _rows(one)]
                halves = [Tables(rows[other::2], p.shape[-1]) for other in (1, 0)]
            proposals |= _proposals(halves, batch, written, plan.sampling.greedy)
        sums = {
            name: np.asarray(_accepted(p, likely, q, batch.length)).tolist()
            for name, q in proposals.items()
        }
        for row in np.flatnonzero(batch.length):
            accepted = {name: values[row] for name, values in sums.items()}
            yield Accepted(int(batch.index[row]), int(batch.length[row]), accepted)
            written += 1


def summarize(records: Iterable[Accepted]) -> Summary:
    """The means over all tokens, with intervals of a bootstrap over texts: tokens of one text are
    not independent. The tables of n-grams are not counted again for each resample.

    Raises:
      ValueError: there is no text.
    """
    records = list(records)
    if not records:
        raise ValueError("no text was written, so nothing is accepted; give some inputs")
    tokens = np.array([text.tokens for text in records])
    alphas = {}
    for name in records[0].accepted:
        accepted = np.transpose([text.accepted[name] for text in records])  # [L, texts]
        values = accepted.sum(axis=1) / tokens.sum()
        ends = bootstrap(np.vstack([accepted, tokens]), lambda sums: sums[:-1] / sums[-1])
        columns = zip(LENIENCE, values, *ends, strict=True)
        alphas[name] = [Alpha(*map(float, column)) for column in columns]
    return Summary(len(records), int(tokens.sum()), alphas)


def lines(summary: Summary) -> Iterator[str]:
    """The figures for people."""
    yield f"{summary.tokens} tokens of {summary.texts} texts that the target wrote"
    lenient = "".join(f"{f'l = {lenience:g}':>10}" for lenience in LENIENCE[1:])
    yield f"{'drafter':10}{'alpha':>8}  {'95 % interval':16}{lenient}"
    for name, (exact, *others) in summary.alphas.items():
        interval = f"{exact.low:.3f} to {exact.high:.3f}"
        figures = "".join(f"{alpha.value:10.3f}" for alpha in others)
        yield f"{name:10}{exact.value:8.3f}  {interval:16}{figures}"


class Tables:
    """The unigram and bigram distributions of texts, smoothed as Witten and Bell (1991) do it:

        q(x)     = (count(x) + types / V) / (count + types)
        q(x | w) = (count(w x) + types(w) q(x)) / (count(w) + types(w))

    with count tokens in all, types different ones, and count(w), types(w) those that follow w. What
    was never seen has a probability too, and there is no constant to choose.

    unigram: [V] float64.
    """

    def __init__(self, texts: Iterable[Sequence[int]], vocab_size: int):
        """Counts all tokens of texts but the first, the start token, which is only followed."""
        following = collections.defaultdict(collections.Counter)
        tokens = collections.Counter()
        for text in texts:
            tokens.update(text[1:])
            for previous, token in itertools.pairwise(text):
                following[previous][token] += 1
        self._following = following
        self.unigram = _witten_bell(tokens, np.full(vocab_size, 1 / vocab_size))

    def bigram(self, previous: int) -> np.ndarray:
        """[V] the distribution of what comes after a token."""
        return _witten_bell(self._following[previous], self.unigram)


def _witten_bell(counts: collections.Counter, backoff: np.ndarray) -> np.ndarray:
    if not counts:
        return backoff
    q = len(counts) * backoff
    q[list(counts.keys())] += list(counts.values())
    return q / (counts.total() + len(counts))


def _rows(batch: Texts) -> Iterator[list[int]]:
    for row in np.flatnonzero(batch.length):
        yield batch.tokens[row, : 1 + batch.length[row]].tolist()


def _proposals(
    halves: Sequence[Tables], batch: Texts, written: int, greedy: bool
) -> dict[str, Array]:
    """Name -> [B, T, V] float32 for the texts from number `written` on; 0 where no token is.

    halves: the tables for the texts of even and of odd number.
    """
    shape = (batch.tokens.shape[0], batch.tokens.shape[1] - 1, halves[0].unigram.size)
    unigram, bigram = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for number, row in enumerate(np.flatnonzero(batch.length), start=written):
        table, size = halves[number % 2], batch.length[row]
        unigram[row, :size] = table.unigram
        bigram[row, :size] = [table.bigram(token) for token in batch.tokens[row, :size].tolist()]
    drawn_from = Greedy().probabilities if greedy else lambda q: q
    tables = {"unigram": unigram, "bigram": bigram}
    return {name: drawn_from(jnp.asarray(q)) for name, q in tables.items()}


def _drafting(plan: Plan, params: Params, inputs: Array) -> tuple[Any, PyTree, Array]:
    """The model that drafts, its parameters, and what it reads of the inputs."""
    (role,) = plan.models().keys() - {"target"}
    view = getattr(plan.drafter, "view", None)
    return plan.models()[role], plan.trees(params)[role], view(inputs) if view else inputs


def _logits(model: Target, params: PyTree, inputs: Array, fed: Array) -> Array:
    """[B, T, V] float32 of one call on [B, T] tokens, the start token first."""
    cache = model.prefill(params, inputs, fed.shape[1])
    return model.decode(params, fed, cache)[0].logits


@functools.partial(jax.jit, static_argnames="plan")
def _forced(
    params: Params, inputs: Array, fed: Array, *, plan: Plan
) -> tuple[Array, Array | None, Array]:
    """p, softmax(logits) of a greedy target, and q: each [B, T, V].

    An id that one of the models lacks gets no probability from it, as when it drafts.
    """
    logits = _logits(plan.target, params.target, inputs, fed)
    draft_logits = _logits(*_drafting(plan, params, inputs), fed)
    draft_logits = fit_vocabulary(draft_logits, logits.shape[-1])
    positions = jnp.broadcast_to(jnp.arange(fed.shape[1]), fed.shape)
    p = plan.sampling.probabilities(logits, positions)
    likely = jax.nn.softmax(logits, axis=-1) if plan.sampling.greedy else None
    return p, likely, plan.drafter.sampling.probabilities(draft_logits)  # type: ignore[attr-defined]


@jax.jit
def _accepted(p: Array, likely: Array | None, q: Array, length: Array) -> Array:
    """[B, L] the sums over each row's tokens; p, likely, q as `_forced` gives them."""
    counts = jnp.arange(q.shape[1])[None] < length[:, None]
    sums = [
        jnp.sum(jnp.where(counts, _rates(p, likely, q, lenience), 0), axis=1)
        for lenience in LENIENCE
    ]
    return jnp.stack(sums, axis=1)


def _rates(p: Array, likely: Array | None, q: Array, lenience: float) -> Array:
    """[B, T] the probability that a draft from q is accepted."""
    if likely is None or lenience == 1:
        return jnp.sum(jnp.minimum(p / lenience, q), axis=-1)
    enough = likely >= lenience * jnp.max(likely, axis=-1, keepdims=True)
    return jnp.sum(jnp.where(enough, q, 0), axis=-1)
