"""Measures whether a token's logits have the same bits in every place of a target call.

A token's logits are one row of a call. `Plan.same_bits` promises the target's own text in every
number format. That holds if a row has the same bits in calls of the target alone and in those that
verify drafts, at any index. Devices differ in this: a product of a few rows may be computed by
other code, or its sums in another order. So it is measured on the device at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from specdec.common import hosts
from specdec.common.values import UsageError
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_search import beam_search
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.sampling import looks_back, standardised
from specdec.types import Array, Cache, Params, PyTree

SEARCHES = 2  # random batches on which beams are compared
TEXT = 24  # tokens before the row that is compared, if outputs are that long


class NotTheSameBits(UsageError):
    """A row of the target's calls has other bits at another index or width, on this device."""


class RowPlace(NamedTuple):
    """The call and the index in it at which a row was computed."""

    width: int  # the tokens of the call
    index: int  # the row's token in it
    capacity: int  # the slots of the cache


def check_same_bits(plan: Plan, params: PyTree, rows: int, length: int) -> None:
    """Raises NotTheSameBits unless a token's logits have equal bits in all calls of the target."""
    _, differing = compared(plan, params, rows, length, widths_of(plan))
    for where in differing[:1]:
        raise NotTheSameBits(
            f"SAME_BITS is True, but on this device ({jax.devices()[0].device_kind}) token "
            f"{where.index + 1} of a call on {where.width} has other bits than in a call on "
            f"{plan.target.computed_width(1)}, with BATCH_SIZE {rows}; set SAME_BITS to False, or "
            "change BATCH_SIZE or GAMMA"
        )


def widths_of(plan: Plan) -> tuple[int, ...]:
    """Returns the computed widths, in tokens, of the target calls that verify drafts."""
    widths = (plan.target.computed_width(bucket + 1) for bucket in plan.buckets)
    return tuple(dict.fromkeys(widths))


def compared(
    plan: Plan, params: PyTree, rows: int, length: int, widths: Sequence[int]
) -> tuple[int, list[RowPlace]]:
    """Compares one token's results in calls of these widths with the target's alone, bit by bit.

    Returns the number of places that were compared, and those whose bits differ.
    """
    alone = plan.target.computed_width(1), plan.alone().capacity
    calls = (alone, *((width, plan.capacity) for width in widths))
    before = min(plan.max_length - 1, max(TEXT, *widths))
    text = made_up(plan.target, rows, length, before + max(alone[0], *widths))
    (_, first), *others = (
        pair for call in calls for pair in _rows(plan, params, *text, before, *call)
    )
    differ = [where for where, row in others if not _equal(row, first)]
    return len(others), differ


def check_same_beams(plan: BeamPlan, params: Params, rows: int, length: int) -> None:
    """Raises NotTheSameBits unless a search with drafts has the bits of one without drafts.

    The tokens of a tree have other slots of the cache than those of plain beams. So whole searches
    of random inputs are compared, with all beams and scores.
    """
    searches = [
        functools.partial(jax.jit(functools.partial(beam_search, plan=x)), x.params(params))
        for x in (plan, plan.alone())
    ]
    for seed in range(SEARCHES):
        inputs, _ = made_up(plan.target, rows, length, 1, seed)
        outputs = (search(inputs) for search in searches)
        ours, plain = (jax.tree.map(hosts.whole, (x.tokens, x.scores)) for x in outputs)
        if not _equal(ours, plain):
            raise NotTheSameBits(
                f"SAME_BITS is True, but on this device ({jax.devices()[0].device_kind}) a search "
                f"for {plan.beams} beams has other bits with a draft than without, with BATCH_SIZE "
                f"{rows}; set SAME_BITS to False, or change BATCH_SIZE or DRAFT_STEPS"
            )


def _equal(first: PyTree, second: PyTree) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def _rows(
    plan: Plan,
    params: PyTree,
    inputs: PyTree,
    tokens: Array,
    before: int,
    width: int,
    capacity: int,
) -> Iterator[tuple[RowPlace, PyTree]]:
    """Yields one token's logits [B, V] and probabilities, at each index of a call.

    The text before the call is fed in calls of the same width, as in decoding.
    """
    target = plan.target
    prefill = jax.jit(functools.partial(target.prefill, capacity=capacity))

    @jax.jit
    def decode(params: PyTree, tokens: Array, cache: Cache) -> tuple[PyTree, Cache]:
        output, fed = target.decode(params, tokens, cache)
        if looks_back(plan.sampling):  # processors work on logits, number by number
            return output.logits, fed
        positions = cache.length[:, None] + jnp.arange(width)[None]
        return standardised(plan.sampling, output.logits, positions, None), fed

    def fed(cache: Cache, start: int) -> tuple[PyTree, Cache]:
        at = cache.rewind(jnp.full([len(tokens)], start, jnp.int32))
        return decode(params, tokens[:, start : start + width], at)

    cache = prefill(params, inputs)
    for start in range(0, before, width):
        _, cache = fed(cache, start)
    for index in range(min(width, before + 1)):
        result, _ = fed(cache, before - index)
        row = jax.tree.map(lambda x, index=index: hosts.whole(x[:, index]), result)
        yield RowPlace(width, index, capacity), row


def made_up(
    target: Target, rows: int, length: int, width: int, seed: int = 0
) -> tuple[PyTree, Array]:
    """Returns random inputs, and random tokens [rows, width] to feed."""
    draw, shapes = np.random.default_rng(seed), target.inputs_shape(rows, length)
    vocab_size: int = getattr(target, "vocab_size", 2)

    def drawn(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        if jnp.issubdtype(dtype, jnp.integer):
            return draw.integers(0, vocab_size, shape).astype(dtype)
        return draw.normal(size=shape).astype(dtype)

    inputs = jax.tree.map(lambda x: jnp.asarray(drawn(x.shape, x.dtype)), shapes)
    return inputs, jnp.asarray(drawn((rows, width), jnp.int32))
