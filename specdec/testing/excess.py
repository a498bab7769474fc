"""Tests whether tokens were drawn from given distributions, each token from another one.

Functions f of a token have values in [0, 1], such as membership of a group of tokens. If the token
was drawn from its distribution, f has the mean and the variance of this distribution. The sum of
f - mean over all tokens is then a martingale, whose tail Freedman's inequality bounds.

`proposals` applies this test to a drafter's tokens. The output is exact only if draft tokens are
drawn from the q that the draft reports. The output itself shows such an error only in many texts,
because corrections hide it. Drafts need no target call, so the drafter drafts several times for
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

EDGES = (1, 2, 5)  # of groups of ranks: the likeliest token, the second, the third to fifth, others
RANKS = len(EDGES) + 1
RESIDUES = 4  # groups by id modulo this, as some errors change ids more than ranks
LOWEST = 10.0  # nats, the largest -log q that is counted
COUNTS = RANKS + RESIDUES + 1  # with -log q, which a changed temperature moves most
DETECTED = 0.99  # the probability with which the stated deviations are detected
_DEVIATIONS = 2.33  # standard deviations that a normal variable exceeds with that probability


def excess(probs: Array, tokens: Array, *others: Array) -> tuple[Array, Array]:
    """Returns f - mean and the variance of f, [B, N, C] each, for tokens [B, N] and q [B, N, V].

    The C functions f are membership in `RANKS` groups by rank and in `RESIDUES` groups by id, -log
    q, and equality with each of `others` [B, N], which are tokens known before the draw.
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
    """Returns [B, N, RANKS, 2]: each rank group's probability, and whether the token is in it."""
    drawn = jnp.take_along_axis(probs, tokens[:, :, None], axis=2)
    before = jnp.arange(probs.shape[-1])[None, None] < tokens[:, :, None]  # breaks ties
    rank = jnp.sum((probs > drawn) | (probs == drawn) & before, axis=2)
    group = jnp.sum(rank[:, :, None] >= jnp.array(EDGES)[None, None], axis=2)
    most = jax.lax.top_k(probs, min(EDGES[-1], probs.shape[-1]))[0]
    up_to = [jnp.sum(most[:, :, :edge], axis=2) for edge in EDGES]
    edges = jnp.stack([jnp.zeros_like(up_to[0]), *up_to, jnp.ones_like(up_to[0])], axis=2)
    return jnp.stack([jnp.diff(edges, axis=2), jax.nn.one_hot(group, RANKS)], axis=3)


def _by_residue(probs: Array, tokens: Array) -> Array:
    """Returns [B, N, RESIDUES, 2]: the probability of ids by remainder, and the token's group."""
    missing = -probs.shape[2] % RESIDUES
    padded = jnp.pad(probs, ((0, 0), (0, 0), (0, missing)))
    mass = jnp.sum(padded.reshape(*tokens.shape, -1, RESIDUES), axis=2)
    return jnp.stack([mass, jax.nn.one_hot(tokens % RESIDUES, RESIDUES)], axis=3)


def tail(excess: np.ndarray, variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns an upper bound [...] of the probability of a sum this large in any of `tests` sums.

    Freedman (1975), theorem 1.6, in both directions:

      P(|sum| >= x) <= 2 exp(-x^2 / (2 (variance + x / 3)))

    `excess` [...] are sums of f - mean over tokens, and `variance` [...] sums of the variances.
    """
    spread = 2 * (variance + np.abs(excess) / 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(excess == 0, 0.0, excess**2 / spread)
    return np.minimum(1.0, 2 * tests * np.exp(-exponent))


def seen(variance: np.ndarray | float, tests: int) -> np.ndarray:
    """Returns the expected sum of f - mean that is detected with probability `DETECTED`.

    It is the sum whose `tail` is `FALSE_ALARM`, plus 2.33 standard deviations.
    """
    limit = math.log(2 * tests / FALSE_ALARM)
    threshold = limit / 3 + np.sqrt(limit**2 / 9 + 2 * limit * np.asarray(variance))
    return threshold + _DEVIATIONS * np.sqrt(variance)


DRAWS = 4  # drafts for each text before a target call
_FIRST = 1 << 20  # folded into a row's key for the first draft; the loop folds in lower numbers
OWN = COUNTS + 2  # functions of a token and its q, with equality to two tokens known before
ALL = OWN + RANKS  # also the rank groups of the next draft's token under the same q


class Tally(NamedTuple):
    """Sums over draft tokens, by inner drafter (S), position in the draft (K), function f (C)."""

    tokens: Array  # [S, K] int32, the number of tokens
    excess: Array  # [S, K, C] float32, sums of f - mean
    variance: Array  # [S, K, C] float32, sums of the variance of f


class _LastDraft(NamedTuple):
    """The previous draft for the same text, with which the next draft is compared."""

    tokens: Array  # [B, T] int32
    probs: Array  # [B, T, V], the q of each token
    there: Array  # [B, T] bool, whether a token is within the draft


@functools.partial(jax.jit, static_argnames="plan")
def tally(params: Params, keys: Array, inputs: PyTree, *, plan: Plan) -> Tally:
    """Decodes a batch, and tests `DRAWS` additional drafts before each target call.

    Each draft token is compared with its q. Since the text determines q, the next draft for the
    same text is also compared with it, up to the first token that differs.

    Args:
      params: the parameters by role, as for `decode`.
      keys: [B] the rows' keys.
      inputs: the target's inputs.
      plan: a plan with a drafter that samples.

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
    """Returns the draft to compare next, and f - mean and variance, [B, T, ALL] each."""
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
    # If the drafts differ in an earlier token, their q differ here.
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
    """Returns the sums over one draft's tokens [B, T], by inner drafter and position."""
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
    """The result of testing whether a drafter draws its tokens from the q that it reports.

    Attributes:
      tokens: the number of draft tokens.
      p_value: an upper bound of the probability of such sums if the reported q is right.
      share: the largest |sum of f - mean| / tokens at the place `where`.
      where: the position in the draft, and the inner drafter, with the lowest p-value.
      temperature: the smallest relative error of q's temperature that is detected.
      variance: the largest sum of variances over the groups of tokens.
      tests: the number of sums that were tested.
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
        """Returns the smallest error of a group's share that is detected with probability 0.99.

        Args:
          times: [...] multiples of the number of tokens tested so far.
        """
        return seen(self.variance * times, self.tests) / np.maximum(self.tokens * times, 1)

    def __str__(self) -> str:
        return (
            f"{self.tokens} draft tokens: shares of groups are off by {self.share:.4f} at most, at "
            f"{self.where} (p = {self.p_value:.2g}, threshold {FALSE_ALARM:g})"
        )


def proposals(tallies: Iterable[Tally], sources: Sequence[str]) -> Proposals:
    """Returns the test of the sums over all batches, at each position and over all positions.

    Args:
      tallies: the sums of each batch.
      sources: the names of the inner drafters; () for a single drafter.
    """
    tokens, more, variance = (
        np.sum([np.asarray(x, np.float64) for x in parts], axis=0)
        for parts in zip(*tallies, strict=True)
    )

    def with_all(x: np.ndarray) -> np.ndarray:
        """Returns the sums [S, K, ...] as [S, K+1, ...], the last one over all positions."""
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
