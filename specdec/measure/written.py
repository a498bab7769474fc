"""Texts that the target writes alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specdec.decoding import check_finite, decode, naming_texts, row_keys
from specdec.decoding.program import GivenBatch
from specdec.decoding.refilling import Refilled
from specdec.models import partitioning
from specdec.plan import Plan
from specdec.types import DecodeOutput, Params, PyTree


class Texts(NamedTuple):
    """A batch that the target wrote. Rows of length 0 do not count."""

    index: np.ndarray  # [B] int32, the example's place in the split
    inputs: PyTree  # [B, ...], those of the target
    tokens: np.ndarray  # [B, 1+N] int32, the start token first
    length: np.ndarray  # [B] output tokens, EOS included


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
    """Yields whole texts of the target alone until they hold this many tokens."""
    # The batch size does not decide which: of the last batch, only the needed rows are kept.
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
