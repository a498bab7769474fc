"""A test of whether tokens were drawn from given distributions, by the excess of what they did.

Each token is counted by functions f with values in [0, 1], such as membership of a group. Given the
text before it, f of a token has the mean and the variance that its distribution says. The sum of
f - mean over all tokens is a martingale, whose tail Freedman's inequality bounds.

`proposals` tests the tokens of a drafter so. Verification is exact for the q that a draft reports.
A drafter that draws from another one changes the output, and few texts show it, because most of the
output is the target's own. Drafts cost no target call, so a drafter is asked again and again for
the same text, with other keys.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding.keys import noise, purpose_keys
from specdec.decoding.loop import prefill, propose, step
from specdec.models.contract import loops
from specdec.plan import Plan
from specdec.testing.law import FALSE_ALARM
from specdec.types import Array, DecodeState, Draft, Params, PyTree

EDGES = (1, 2, 5)  # between ranks: the likeliest token, the second, the third to fifth, others
RANKS = len(EDGES) + 1
RESIDUES = 4  # groups of ids too: a draft that is let through moves ids, and ranks less
LOWEST = 10.0  # nats; less likely tokens count as if they had this log-probability
COUNTS = RANKS + RESIDUES + 1  # with the log-probability, which a changed temperature moves most
DETECTED = 0.99  # the probability with which the stated deviations are seen
_DEVIATIONS = 2.33  # standard deviations that a normal variable exceeds with that probability


def excess(probs: Array, tokens: Array, *others: Array) -> tuple[Array, Array]:
    """Returns what tokens [B, N] did beyond their distributions [B, N, V], and its variance.

    They are f - mean and variance, [B, N, C] each: of `RANKS` groups by rank, `RESIDUES` groups by
    id, the log-probability, and equality with each of `others` [B, N], which were known before.
    """
    groups = [by_rank(probs, tokens), _by_residue(probs, tokens)]
    for other in others:
        mass = jnp.take_along_axis(probs, other[:, :, None], axis=2)
        groups.append(jnp.stack([mass, (tokens == other)[:, :, None]], axis=3))
    mass = jnp.concatenate([group[..., 0] for group in groups], axis=2)
    member = jnp.concatenate([group[..., 1] for group in groups], axis=2)
    mass = jnp.clip(mass, 0, 1)
    surprise = jnp.minimum(-jnp.log(probs), LOWEST) / LOWEST  # 1 where the probability is 0
    mean = jnp.sum(probs * surprise, axis=2)
    drawn = jnp.take_along_axis(surprise, tokens[:, :, None], axis=2)[:, :, 0]
    spread = jnp.sum(probs * (surprise - mean[:, :, None]) ** 2, axis=2)

    def with_surprise(counts: Array, value: Array) -> Array:
        at = RANKS + RESIDUES
        return jnp.concatenate([counts[..., :at], value[..., None], counts[..., at:]], axis=2)

    return with_surprise(member - mass, drawn - mean), with_surprise(mass * (1 - mass), spread)


def by_rank(probs: Array, tokens: Array) -> Array:
    """Returns each group's probability, and 1 for the group of the token, [B, N, RANKS, 2]."""
    drawn = jnp.take_along_axis(probs, tokens[:, :, None], axis=2)
    before = jnp.arange(probs.shape[-1])[None, None] < tokens[:, :, None]  # breaks ties
    rank = jnp.sum((probs > drawn) | (probs == drawn) & before, axis=2)
    group = jnp.sum(rank[:, :, None] >= jnp.array(EDGES)[None, None], axis=2)
    most = jax.lax.top_k(probs, min(EDGES[-1], probs.shape[-1]))[0]
    up_to = [jnp.sum(most[:, :, :edge], axis=2) for edge in EDGES]
    edges = jnp.stack([jnp.zeros_like(up_to[0]), *up_to, jnp.ones_like(up_to[0])], axis=2)
    return jnp.stack([jnp.diff(edges, axis=2), jax.nn.one_hot(group, RANKS)], axis=3)


def _by_residue(probs: Array, tokens: Array) -> Array:
    """Returns the same by the id's remainder."""
    missing = -probs.shape[2] % RESIDUES
    padded = jnp.pad(probs, ((0, 0), (0, 0), (0, missing)))
    mass = jnp.sum(padded.reshape(*tokens.shape, -1, RESIDUES), axis=2)
    return jnp.stack([mass, jax.nn.one_hot(tokens % RESIDUES, RESIDUES)], axis=3)


def tail(excess: np.ndarray, variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns an upper bound of the probability of such a sum in any of several tests.

    Freedman (1975), theorem 1.6, in both directions:

      P(|sum| >= x) <= 2 exp(-x^2 / (2 (variance + x / 3)))

    `excess` [...] are sums of `excess`, and `variance` [...] those of their variances.
    """
    spread = 2 * (variance + np.abs(excess) / 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(excess == 0, 0.0, excess**2 / spread)
    return np.minimum(1.0, 2 * tests * np.exp(-exponent))


def seen(variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns the mean excess that is detected with probability `DETECTED`.

    It is the sum whose `tail` is `FALSE_ALARM`, and 2.33 standard deviations.
    """
    limit = math.log(2 * tests / FALSE_ALARM)
    threshold = limit / 3 + np.sqrt(limit**2 / 9 + 2 * limit * np.asarray(variance))
    return threshold + _DEVIATIONS * np.sqrt(variance)


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
