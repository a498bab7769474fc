"""Writes texts with the target alone, and records the figures of drafters at their tokens."""

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
from jax.sharding import Mesh

from specdec.common import hosts
from specdec.decoding import check_finite, decode, naming_texts, row_keys
from specdec.decoding.program import GivenBatch
from specdec.decoding.refilling import Refilled
from specdec.measure.alphas import Accepted
from specdec.measure.opinions import Opinions, Taught, of, opinions, recorded, teach, tossed
from specdec.models import partitioning
from specdec.models.contract.inputs import lengths_of, tokens_of
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.types import Array, DecodeOutput, Params, PyTree


class Texts(NamedTuple):
    """A batch of texts that the target wrote alone."""

    index: np.ndarray  # [B] int32, the example's place in the split
    inputs: PyTree  # [B, ...], the target's inputs
    tokens: np.ndarray  # [B, 1+N] int32, the start token and the output
    length: np.ndarray  # [B] output tokens with EOS; 0 for a row to leave out


def generate(
    plan: Plan,
    params: PyTree,
    batches: Iterable[tuple[np.ndarray, PyTree]],
    *,
    seed: int,
    tokens: int,
    skip: Collection[int] = (),
    mesh: Mesh | None = None,
    refilled: Refilled | None = None,
) -> Iterator[Texts]:
    """Yields texts of the target alone until they have `tokens` tokens, without indices of `skip`.

    Batches are (index [B], inputs [B, ...])."""
    # Only the needed rows of the last batch are kept, so texts do not depend on the batch size.
    alone = plan.alone()
    write = functools.partial(decode, plan=alone)
    if mesh is not None:
        write = jax.jit(write, out_shardings=partitioning.whole(mesh))

    def decoded(index: np.ndarray, inputs: PyTree) -> DecodeOutput:
        placed = jax.tree.map(jnp.asarray, (index, inputs))
        if mesh is not None:
            placed = partitioning.divided_rows(placed, mesh)
        output = write(Params(params), row_keys(seed, placed[0]), placed[1])
        check_finite(output, alone.target)
        return output

    fresh = ((*batch, ~np.isin(batch[0], list(skip))) for batch in batches)
    fresh, ahead = itertools.tee(batch for batch in fresh if batch[2].any())
    if refilled:
        with_keys = (
            GivenBatch(row_keys(seed, jnp.asarray(index)), inputs, new & (index >= 0))
            for index, inputs, new in ahead
        )
        outputs = (output for output, _ in refilled.outputs(Params(params), with_keys))
    else:
        outputs = (decoded(index, inputs) for index, inputs, _ in ahead)
    while tokens > 0 and (batch := next(fresh, None)):
        index, inputs, new = batch
        with naming_texts(index):
            output = next(outputs)
        length = np.where(new, output.length, 0)
        length = np.where(np.cumsum(length) - length < tokens, length, 0)
        start = np.asarray(alone.target.start(jax.tree.map(jnp.asarray, inputs)))
        written = np.concatenate([start[:, None], output.tokens], axis=1)
        yield Texts(index, inputs, written, length)
        tokens -= int(length.sum())


DIGITS = 6  # decimal places of recorded figures


def measure(
    plan: Plan, params: Params, texts: Iterable[Texts], *, tables: bool, mesh: Mesh | None = None
) -> Iterator[Accepted]:
    """Yields the record of each text: its tokens, and the figures of each drafter at these."""
    # The plan's drafter is 'model'. With `tables`, unigram and bigram drafters are counted in one
    # half of the texts and measured on the other, so all texts are read first.
    texts = list(texts) if tables else texts
    halves: list[NGrams] = []
    written = 0

    def placed(arrays: PyTree) -> PyTree:
        return arrays if mesh is None else partitioning.divided_rows(arrays, mesh)

    for batch in texts:
        arrays = placed((batch.inputs, batch.tokens, batch.length))
        taught = teach(params, arrays[0], arrays[1][:, :-1], plan=plan)
        asked = _asked(plan, params, arrays, taught)
        of_drafter = asked.pop("")
        if plan.drafter.block is not None:  # alpha counts only the first token of a block
            of_drafter = jax.tree.map(lambda x: x[:, :, 0], of_drafter)
        sums = {"model": _sums(of_drafter, batch)}
        if tables:
            if not halves:
                all_rows = [row for written_batch in texts for row in rows(written_batch)]
                halves = [NGrams(all_rows[other::2], taught.p.shape[-1]) for other in (1, 0)]
            tokens = jnp.asarray(batch.tokens[:, 1:])
            coins = tossed(tokens)
            for name, q in proposals(halves, batch, written, plan.sampling.greedy).items():
                q, *others = placed((q, tokens, coins))
                sums[name] = _sums(_fetched(_of(q, taught, *others)), batch)
        depth = None if taught.depth is None else hosts.whole(taught.depth)
        for row in np.flatnonzero(batch.length):
            text = _text(plan, batch, int(row), sums, asked)
            depths = () if depth is None else depth[row, : text.tokens].tolist()
            proposes = int(np.sum(of_drafter.proposed[row, : text.tokens] >= 0))
            yield text._replace(proposes=proposes, depths=depths)
            written += 1


_of = jax.jit(of)


def _fetched(figures: Opinions) -> Opinions:
    return jax.tree.map(hosts.whole, figures)


def _asked(
    plan: Plan, params: Params, arrays: tuple[PyTree, PyTree, PyTree], taught: Taught
) -> dict[str, Opinions]:
    """Returns name -> `Opinions` of the plan's drafter (name '') and of its recorded drafters."""
    by_name = {}
    for name, drafter in [("", plan.drafter), *recorded(plan.drafter)]:
        if name and drafter is plan.drafter:
            by_name[name] = by_name[""]
            continue
        asked = dataclasses.replace(plan, drafter=drafter)
        by_name[name] = _fetched(opinions(asked.params(params), *arrays, taught, plan=asked))
    return by_name


def _sums(asked: Opinions, batch: Texts) -> np.ndarray:
    """Returns [B, L], the sums of `rates` over each row's tokens."""
    counts = np.arange(asked.rates.shape[1])[None] < batch.length[:, None]
    return np.sum(np.where(counts[:, :, None], asked.rates, 0), axis=1)


def _text(
    plan: Plan,
    batch: Texts,
    row: int,
    sums: Mapping[str, np.ndarray],
    asked: Mapping[str, Opinions],
) -> Accepted:
    """Returns the record of one row, without `proposes` and `depths`."""
    size = int(batch.length[row])
    return Accepted(
        index=int(batch.index[row]),
        tokens=size,
        accepted={name: values[row].tolist() for name, values in sums.items()},
        inputs=unpadded(batch.inputs, row, plan.target.pad_id),
        output=batch.tokens[row, 1 : 1 + size].tolist(),
        drafts={
            name: _recording(asked[name], row, size, drafter.sampling.greedy)
            for name, drafter in recorded(plan.drafter)
        },
    )


def unpadded(inputs: PyTree, row: int, pad_id: int) -> list[int]:
    """Returns the token ids of one row's input without padding; none if inputs are not tokens."""
    length = lengths_of(inputs, pad_id)[row]
    return tokens_of(inputs)[row, :length].tolist() if length else []


def _recording(asked: Opinions, row: int, size: int, greedy: bool) -> dict[str, list[Any]]:
    """Returns a drafter's figures at the first `size` tokens of a row, see `Accepted.drafts`."""
    figures = {"confidence": asked.confidence, "entropy": asked.entropy, "top": asked.top}
    if not greedy:
        figures |= {"ratio": asked.ratio, "refused": asked.refused}
    rounded = {name: _rounded(values[row, :size].tolist()) for name, values in figures.items()}
    return {"proposed": asked.proposed[row, :size].tolist(), **rounded}


def _rounded(values: Any) -> Any:
    return [_rounded(x) for x in values] if isinstance(values, list) else round(values, DIGITS)


class NGrams:
    """The unigram and bigram distributions of texts, smoothed as in Witten and Bell (1991)."""

    # q(x)     = (count(x) + types / V) / (count + types)
    # q(x | w) = (count(w x) + types(w) q(x)) / (count(w) + types(w))
    # count: number of tokens; types: number of distinct tokens; (w): among tokens after w

    def __init__(self, texts: Iterable[Sequence[int]], vocab_size: int):
        """Counts the tokens of texts; the start token of each text counts only as a context."""
        self._following = collections.defaultdict(collections.Counter)
        tokens = collections.Counter()
        for text in texts:
            tokens.update(text[1:])
            for previous, token in itertools.pairwise(text):
                self._following[previous][token] += 1
        self.unigram = _witten_bell(tokens, np.full(vocab_size, 1 / vocab_size))

    def bigram(self, previous: int) -> np.ndarray:
        """Returns [V], the distribution of the next token after the token `previous`."""
        return _witten_bell(self._following[previous], self.unigram)


def _witten_bell(counts: collections.Counter, backoff: np.ndarray) -> np.ndarray:
    if not counts:
        return backoff
    q = len(counts) * backoff
    q[list(counts.keys())] += list(counts.values())
    return q / (counts.total() + len(counts))


def rows(batch: Texts) -> Iterator[list[int]]:
    for row in np.flatnonzero(batch.length):
        yield batch.tokens[row, : 1 + batch.length[row]].tolist()


def proposals(
    halves: Sequence[NGrams], batch: Texts, written: int, greedy: bool
) -> dict[str, Array]:
    """Returns name -> q [B, T, V] float32 of the unigram and bigram drafters, 0 after text ends.

    `written` texts precede the batch; odd and even texts use different halves."""
    shape = (batch.tokens.shape[0], batch.tokens.shape[1] - 1, halves[0].unigram.size)
    unigram, bigram = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for number, row in enumerate(np.flatnonzero(batch.length), start=written):
        table, size = halves[number % 2], batch.length[row]
        unigram[row, :size] = table.unigram
        bigram[row, :size] = [table.bigram(token) for token in batch.tokens[row, :size].tolist()]
    drawn_from = Greedy().probabilities if greedy else lambda q: q
    tables = {"unigram": unigram, "bigram": bigram}
    return {name: drawn_from(jnp.asarray(q)) for name, q in tables.items()}
