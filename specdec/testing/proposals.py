"""A test of whether a drafter's tokens have the distributions that it reports.

Verification is exact for the q that a draft reports. A drafter that draws from another one changes
the output, and few texts show it, because most of the output is the target's own. Drafts cost no
target call, so a drafter is asked again and again for the same text, with other keys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding.keys import noise, purpose_keys
from specdec.decoding.loop import prefill, propose, step
from specdec.models.contract import loops
from specdec.plan import Plan
from specdec.testing.excess import COUNTS, LOWEST, RANKS, excess, seen, tail
from specdec.testing.law import FALSE_ALARM
from specdec.types import Array, DecodeState, Draft, Params, PyTree

DRAWS = 4  # for each text that a call of the target continues
_FIRST = 1 << 20  # fold of a row's key for the first of them; the loop's own folds are below
OWN = COUNTS + 2  # counts of a token against its own q, with two tokens that were known before
ALL = OWN + RANKS  # and of the next draw against the same q


class Tally(NamedTuple):
    """Sums over draft tokens, by source (S), depth (K), and count (C)."""

    tokens: Array  # [S, K] int32
    excess: Array  # [S, K, C] float32
    variance: Array  # [S, K, C] float32


class _LastDraft(NamedTuple):
    """The last draft for the same text, to which the next one is compared."""

    tokens: Array  # [B, T] int32
    probs: Array  # [B, T, V]
    there: Array  # [B, T] bool, the tokens that count


@functools.partial(jax.jit, static_argnames="plan")
def tally(params: Params, keys: Array, inputs: PyTree, *, plan: Plan) -> Tally:
    """Decodes a batch, and before each target call draws `DRAWS` other drafts and counts them.

    A token is counted against its own q. Since q follows from the text, the next draw for the same
    text is counted against it too, up to the first token that differs.

    Args:
      params: as for `decode`.
      keys: [B] the rows' keys.
      inputs: the target's inputs.
      plan: draws its tokens.

    Returns:
      The sums over the tokens of all drafts.
    """
    width = plan.nodes_of(plan.longest_draft)

    def draw(
        number: Array, loop: tuple[Tally, _LastDraft], state: DecodeState
    ) -> tuple[Tally, _LastDraft]:
        total, last = loop
        of_row = jax.vmap(lambda key: purpose_keys(jax.random.fold_in(key, _FIRST + number)))(keys)
        keys_of = functools.partial(noise, width=width, shared=plan.shared_noise)
        draft, _ = propose(params, jax.vmap(keys_of)(of_row, state.length - 1), state, plan)
        pending = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)[:, 0]
        drawn, counts = _counted(draft, pending, last, number > 0, state.vocab_size)
        return jax.tree.map(jnp.add, total, _sums(draft, drawn, *counts, plan)), drawn

    def again(loop: tuple[DecodeState, Tally]) -> tuple[DecodeState, Tally]:
        state, total = loop
        shape = len(state.length), width
        none = _LastDraft(
            jnp.zeros(shape, jnp.int32),
            jnp.zeros([*shape, state.vocab_size], jnp.float32),
            jnp.zeros(shape, bool),
        )
        body = functools.partial(draw, state=state)
        total, _ = jax.lax.fori_loop(0, DRAWS, body, (total, none))
        return step(params, state, plan), total

    sources, depths = len(plan.sources) or 1, plan.longest_draft
    sums = jnp.zeros([sources, depths, ALL], jnp.float32)
    total = Tally(jnp.zeros([sources, depths], jnp.int32), sums, sums)
    state = prefill(params, keys, inputs, plan)
    return loops.while_loop(lambda loop: jnp.any(loop[0].active), again, (state, total))[1]


def _counted(
    draft: Draft, pending: Array, last: _LastDraft, compares: Array, vocab_size: int
) -> tuple[_LastDraft, tuple[Array, Array]]:
    """Returns a draft, and the excess and variance of its tokens, [B, T, ALL] each."""
    rows, total = draft.tokens.shape
    tokens = jnp.clip(draft.tokens, 0, vocab_size - 1)
    certain = jax.nn.one_hot(tokens, vocab_size)
    probs = certain if draft.probs is None else draft.probs
    index = jnp.arange(total)[None]
    if draft.nodes is None:
        there = index < draft.length[:, None]
        parents = jnp.concatenate([pending[:, None], tokens[:, :-1]], axis=1)
        lead = jnp.broadcast_to(jnp.tri(total, dtype=bool)[None], (rows, total, total))
    else:
        there = draft.nodes.valid
        parents = draft.nodes.of_parents(tokens, pending)
        lead = draft.nodes.lead()
    drawn = _LastDraft(tokens, jnp.where(there[:, :, None], probs, certain), there)
    neighbours = jnp.roll(tokens, 1, axis=1).at[:, 0].set(pending)
    # A draw that differs in a token before this one has another q.
    apart = (tokens != last.tokens) | ~last.there | ~there
    before = lead & ~jnp.eye(total, dtype=bool)[None]
    alike = ~jnp.any(before & apart[:, None], axis=2) & last.there & there & compares
    probs = jnp.concatenate([drawn.probs, last.probs])
    twice = (jnp.concatenate([x, x]) for x in (tokens, parents, neighbours))
    counted = jnp.concatenate([there, alike])[:, :, None]
    counts = (jnp.where(counted, x, 0) for x in excess(probs, *twice))
    counts = tuple(jnp.concatenate([x[:rows], x[rows:, :, :RANKS]], axis=2) for x in counts)
    return drawn, (counts[0], counts[1])


def _sums(draft: Draft, drawn: _LastDraft, more: Array, variance: Array, plan: Plan) -> Tally:
    """Returns the sums of one draft, by the source of each row and the depth of each token."""
    depths = plan.longest_draft
    sources = len(plan.sources) or 1
    source = jnp.zeros_like(draft.length) if draft.source is None else draft.source
    of_source = jax.nn.one_hot(source, sources)
    depth = jnp.arange(drawn.tokens.shape[1]) if draft.nodes is None else draft.nodes.depths
    of_depth = jax.nn.one_hot(depth, depths)
    add = functools.partial(jnp.einsum, "bs,tk,btc->skc", of_source, of_depth)
    tokens = add(drawn.there[:, :, None].astype(jnp.float32))[..., 0]
    return Tally(tokens.astype(jnp.int32), add(more), add(variance))


@dataclasses.dataclass(frozen=True)
class Proposals:
    """The test of a drafter's draft tokens.

    Attributes:
      tokens: the draft tokens.
      p_value: a bound of the probability of such sums from a drafter that reports the truth.
      share: the largest excess of a count at any source and depth, as a share of its tokens.
      where: the source and depth of the lowest probability.
      temperature: the smallest relative change of the temperature of q that is seen so.
      variance: the largest sum of variances of a group.
      tests: the number of sums that were looked at.
    """

    tokens: int
    p_value: float
    share: float
    where: str
    temperature: float
    variance: float
    tests: int

    @property
    def passed(self) -> bool:
        return self.p_value >= FALSE_ALARM

    def detectable(self, times: np.ndarray) -> np.ndarray:
        """Returns the smallest errors of a group's share that are seen with probability 0.99.

        Args:
          times: how many times as much is looked at.
        """
        return seen(self.variance * times, self.tests) / np.maximum(self.tokens * times, 1)

    def __str__(self) -> str:
        return (
            f"{self.tokens} draft tokens: shares of groups are off by {self.share:.4f} at most, at "
            f"{self.where} (p = {self.p_value:.2g}, threshold {FALSE_ALARM:g})"
        )


def proposals(tallies: Iterable[Tally], sources: Sequence[str]) -> Proposals:
    """Returns the test of the sums of all batches, at each depth and over all depths.

    Args:
      tallies: the sums of each batch.
      sources: the names of the sources, for the words; () if there is only one.
    """
    tokens, more, variance = (
        np.sum([np.asarray(x, np.float64) for x in parts], axis=0)
        for parts in zip(*tallies, strict=True)
    )

    def with_all(x: np.ndarray) -> np.ndarray:
        """Returns the sums with one more depth, of all."""
        return np.concatenate([x, x.sum(axis=1, keepdims=True)], axis=1)

    tokens, more, variance = map(with_all, (tokens, more, variance))
    tests = more.size
    p_values = tail(more, variance, tests)
    shares = np.abs(more) / np.maximum(tokens, 1)[..., None]
    source, depth, _ = map(int, np.unravel_index(np.argmin(p_values), p_values.shape))
    where = "all depths" if depth == more.shape[1] - 1 else f"depth {depth}"
    if sources:
        where = f"{where} of {sources[source]}"
    total = tokens[:, -1].sum()
    of_groups = variance[:, -1].sum(axis=0)
    widest = float(of_groups[: COUNTS - 1].max())
    # d E[-log q] / d beta = -Var[log q] for q^beta; the count is -log q / LOWEST.
    surprise = float(of_groups[COUNTS - 1])
    scale = LOWEST * surprise
    return Proposals(
        tokens=int(total),
        p_value=float(p_values.min()),
        share=float(shares[source, depth].max()),
        where=where,
        temperature=float(seen(surprise, tests)) / scale if scale else float("inf"),
        variance=widest,
        tests=tests,
    )
