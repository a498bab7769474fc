"""Verification of one row, with one path, several paths or a tree; the two simplest verifiers."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from specdec.common.values import Rule, is_number
from specdec.models.contract.draft_tree import follow
from specdec.sampling import draw, is_distribution
from specdec.types import Array, Draft, Noise, Scores, Verdict


def _is_gap(x: object) -> bool:
    infinite = isinstance(x, float) and x == math.inf  # which no gap is above
    return infinite or is_number(x) and x >= 0


Gap = Annotated[float, Rule(_is_gap, "a gap in nats, 0 or more, or inf")]


class Verifier(abc.ABC):
    """Decides which tokens of a draft to keep; a frozen dataclass with two functions of one row.

    Both functions are deterministic and keep the dtype of their input. The distribution of the
    output can therefore be computed exactly, in float64 (`testing.output_law`).

    Attributes:
      exact: whether the output has the target's distribution. The default is False, and every
        report says so.
      shared_noise: whether the draft is drawn with the same noise as the target (`Coupled`). It is
        valid only for a verifier that accepts equal tokens and no others.
      rule: "first" if the kept tokens end before the first test that fails, "last" if they end with
        the last test that passes.
      greedy_only: whether the verifier needs temperature 0; a `Plan` then refuses other sampling.
      reads_beliefs: whether greedy drafters must give their softmax (`Draft.beliefs`).
      several_paths: whether drafts may have several paths, which `by_rounds` then verifies.
    """

    exact: ClassVar[bool] = False
    shared_noise: ClassVar[bool] = False
    rule: ClassVar[str] = "first"
    greedy_only: ClassVar[bool] = False
    reads_beliefs: ClassVar[bool] = False
    several_paths: ClassVar[bool] = False

    @abc.abstractmethod
    def accept(self, draft: Draft, scores: Scores) -> Array:
        """Returns [K], the probability of accepting draft token i if those before it were accepted.

        It must not be NaN for a token with p or q of 0. `draft.probs` is None if the tokens were
        proposed with certainty.

        Args:
          draft: one row of a draft.
          scores: the target's scores for it.
        """

    @abc.abstractmethod
    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        """Returns [V], the distribution of the next token after n accepted ones, n < length.

        Args:
          draft: one row of a draft.
          scores: the target's scores for it.
          n: [] int32, the number of accepted tokens.
        """

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        """Decides about one row by `accept` and `residual`.

        Token i is kept if u_i < accept_i. The comparison is strict, because u can be 0. A verifier
        may override this method to decide in another way.

        Args:
          keys: the row's random keys.
          draft: one row of a draft.
          scores: the target's scores for it.
        """
        if draft.tokens.shape[0] == 0:  # a call without a draft
            return Verdict(jnp.int32(0), draw(keys.correct[0], scores.probs[0]))
        uniforms = jax.vmap(jax.random.uniform)(keys.accept)
        passed = (uniforms < self.accept(draft, scores)) & _within(draft)
        n = kept_tokens(self, passed)
        return Verdict(n, draw(keys.correct[n], next_distribution(self, draft, scores, n)))

    @property
    def by_law(self) -> bool:
        """Whether verdicts follow the probabilities of `accept` and `residual`."""
        return type(self).verdict is Verifier.verdict


def verdict(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
    """Returns the verifier's verdict about one row, without tokens that processors exclude.

    Args:
      verifier: decides about the row.
      keys: the row's random keys.
      draft: one row of a draft.
      scores: the target's scores for it.

    Example:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> draft = Draft(jnp.array([2, 1]), None, jnp.int32(2))  # a greedy draft: 2, then 1
    >>> p = jnp.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # the target: 2, then 0
    >>> found = verdict(SpeculativeSampling(), Noise(keys[:2], keys[:2], keys), draft, Scores(p, p))
    >>> int(found.num_accepted), int(found.next_token)
    (1, 0)
    """
    decision = verifier.verdict(keys, draft, scores)
    if scores.processed and not verifier.exact:
        return _without_excluded(verifier, decision, keys, draft, scores)
    return decision


def _without_excluded(
    verifier: Verifier, decision: Verdict, keys: Noise, draft: Draft, scores: Scores
) -> Verdict:
    """Returns a lossy verifier's verdict up to the first token that a processor excludes.

    The target's own token takes its place. If a kept token is excluded, that token is drawn from p.
    If the token after the kept ones may be excluded, its distribution r is changed: each excluded
    token x gives its probability r(x) to p:

      r'(y) = r(y) + r(excluded) p(y)    for y that is not excluded

    One draw from r' replaces a draw from r and, if that is excluded, a second one from p. Two draws
    would need two keys. With one key, the second would depend on what the first has excluded.
    """
    rows = jnp.arange(draft.tokens.shape[0])
    possible = scores.logits[rows, draft.tokens] > -jnp.inf
    n = jnp.minimum(decision.num_accepted, leading(possible))
    probs, unchanged = scores.probs[n], n == decision.num_accepted
    if not verifier.by_law or not len(rows):  # p gives excluded tokens probability 0
        keeps = unchanged & (scores.logits[n, decision.next_token] > -jnp.inf)
        return Verdict(n, jnp.where(keeps, decision.next_token, draw(keys.correct[n], probs)))
    law = jnp.where(unchanged, next_distribution(verifier, draft, scores, n), probs)
    excluded = scores.logits[n] == -jnp.inf
    law = jnp.where(excluded, 0, law) + jnp.sum(jnp.where(excluded, law, 0)) * probs
    return Verdict(n, draw(keys.correct[n], law))


def next_distribution(verifier: Verifier, draft: Draft, scores: Scores, n: Array) -> Array:
    """Returns [V], the distribution of the token after n accepted ones.

    If the whole draft was accepted, it is the target's own distribution.

    Args:
      verifier: decides about the row.
      draft: one row of a draft.
      scores: the target's scores for it.
      n: [] int32, the number of accepted tokens.
    """
    within = jnp.minimum(n, draft.tokens.shape[0] - 1)  # of the row that is not used, any index
    residual = verifier.residual(draft, scores, within)
    return jnp.where(n < draft.length, residual, scores.probs[n])


def draft_distribution(draft: Draft, i: Array, vocab_size: int, dtype) -> Array:
    """Returns [V], the distribution that draft token i was drawn from.

    Args:
      draft: one row of a draft.
      i: [] int32, the index of the token.
      vocab_size: V.
      dtype: of a one-hot distribution, if the draft is certain.
    """
    if draft.probs is None:
        return jax.nn.one_hot(draft.tokens[i], vocab_size, dtype=dtype)
    return draft.probs[i]


def match(draft: Draft, best: Array, keeps: Array | None = None) -> Verdict:
    """Returns the longest prefix of one row's draft that is kept, and the best token after it.

    `best` [K+1] is the target's choice at each position. `keeps` [K] says which tokens are kept;
    None stands for those that equal the best token.
    """
    keeps = draft.tokens == best[:-1] if keeps is None else keeps
    n = leading(keeps & _within(draft))
    return Verdict(n, best[n].astype(jnp.int32))


class ByArgmax(Verifier):
    """A verifier that decides about each token without randomness, by `keeps`.

    The target's likeliest token comes after the kept ones.
    """

    greedy_only: ClassVar[bool] = True

    @abc.abstractmethod
    def keeps(self, draft: Draft, scores: Scores) -> Array:
        """Returns [K] bool, which draft tokens are kept."""

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return self.keeps(draft, scores).astype(scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        best = jnp.argmax(scores.logits[n], axis=-1)
        return jax.nn.one_hot(best, scores.logits.shape[-1], dtype=scores.probs.dtype)

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        return match(draft, jnp.argmax(scores.logits, axis=-1), self.keeps(draft, scores))


def gaps(draft: Draft, scores: Scores) -> Array:
    """Returns [K], the likeliest token's logit minus the draft token's, in nats."""
    rows = jnp.arange(draft.tokens.shape[0])
    drafted = scores.logits[rows, draft.tokens]
    return jnp.max(scores.logits[:-1], axis=-1) - drafted


def excess(p: Array, q: Array) -> Array:
    """Returns [V], norm(max(0, p - q)).

    It is p if p exceeds q nowhere: both are equal up to rounding, or q is NaN and no token passed.
    """
    more = jnp.maximum(p - q, 0)
    total = jnp.sum(more)
    return jnp.where(total > 0, more / total, p)


def ratio(p: Array, q: Array) -> Array:
    """Returns min(1, p / q), and 0 where q is 0 or not a number."""
    return jnp.minimum(jnp.where(q > 0, p / q, 0), 1)


def token_probs(draft: Draft, scores: Scores) -> tuple[Array, Array]:
    """Returns [K] p_i(x_i) and [K] q_i(x_i), the draft tokens' probabilities."""
    rows = jnp.arange(draft.tokens.shape[0])
    p = scores.probs[rows, draft.tokens]
    q = jnp.ones_like(p) if draft.probs is None else draft.probs[rows, draft.tokens]
    return p, q


def _within(draft: Draft) -> Array:
    return jnp.arange(draft.tokens.shape[0]) < draft.length


def leading(passed: Array) -> Array:
    """Returns the number of True before the first False, along the last axis."""
    width = passed.shape[-1]
    failed = jnp.where(
        passed, width, jax.lax.broadcasted_iota(jnp.int32, passed.shape, passed.ndim - 1)
    )
    return jnp.min(failed, axis=-1, initial=width)


def usable_tokens(draft: Draft) -> Array:
    """Returns which draft tokens come from a valid distribution, bool of the tokens' shape.

    A token that was proposed with certainty always counts. No verifier is exact for a draft that
    continues after an invalid token. The decoding loop therefore ends the draft there, as do exact
    enumerations in tests.
    """
    usable = jnp.ones(draft.tokens.shape, bool)
    for probs in (draft.probs, draft.beliefs):
        if probs is not None:
            usable &= is_distribution(probs)
    return usable


def kept_tokens(verifier: Verifier, passed: Array) -> Array:
    """Returns the number of tokens that a verifier's rule keeps, given which tests [K] passed."""
    if verifier.rule == "last":
        return jnp.max(jnp.where(passed, jnp.arange(1, passed.shape[0] + 1), 0), initial=0)
    return leading(passed)


@dataclasses.dataclass(frozen=True)
class GreedyMatch(ByArgmax):
    """Keeps the draft tokens that the target would have chosen itself, then adds its next choice.

    Exact at temperature 0 (Leviathan et al. 2022, section 2.3, for one-hot distributions).
    """

    exact: ClassVar[bool] = True
    several_paths: ClassVar[bool] = True

    def keeps(self, draft: Draft, scores: Scores) -> Array:
        return draft.tokens == jnp.argmax(scores.logits, axis=-1)[:-1]


@dataclasses.dataclass(frozen=True)
class SpeculativeSampling(Verifier):
    """The rule of Leviathan et al. 2022, section 2.3, and Chen et al. 2023. Exact.

    accept_i   = min(1, p_i(x_i) / q_i(x_i))
    residual_n = norm(max(0, p_{n+1} - q_{n+1}))
    """

    exact: ClassVar[bool] = True
    several_paths: ClassVar[bool] = True

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return ratio(*token_probs(draft, scores))

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        p = scores.probs[n]
        return excess(p, draft_distribution(draft, n, p.shape[-1], p.dtype))


class PathVerdict(NamedTuple):
    """The verdict about one row: a path, the number of its kept tokens, and the next token."""

    nodes: Array  # [levels] int32, the nodes of the path
    length: Array  # [] int32, the number of the path's tokens that were verified
    num_accepted: Array  # [] int32
    next_token: Array  # [] int32


def choose(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> PathVerdict:
    """Returns the verdict about one row of a draft tree with T nodes.

    If `scores` are greedy, the target's likeliest tokens are followed through the nodes. Otherwise
    the paths are verified by `by_rounds`. `keys.accept` [T] begins with the first path's keys.
    `scores` [1+T, V] are those after the pending token and after each node.
    """
    if not scores.greedy:
        return by_rounds(verifier, keys, draft, scores)
    best = jnp.argmax(scores.logits, axis=-1).astype(jnp.int32)
    path = follow(draft.tree, draft.tokens, lambda depth, at: best[at + 1])
    last = jnp.where(path.kept > 0, path.nodes[path.kept - 1] + 1, 0)
    return PathVerdict(path.nodes, path.length, path.kept, best[last])


def by_rounds(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> PathVerdict:
    """Verifies independent paths one after the other.

    The first path is verified as if it were the only one. Let it keep n tokens s, after which the
    next token has the distribution r. Instead of drawing that token, the next path that begins with
    s is verified from there on, with r as the target's first distribution. The rest of that path is
    independent of all that was seen, and drawn from q. A rule that is exact for any target is
    therefore exact for this one, and by induction for all paths. Each round keeps what those before
    it have kept, so no path lowers the number of tokens.

    With `SpeculativeSampling`, these are the rounds of SpecInfer (Miao et al. 2024, arXiv
    2305.09781). With `Block` each round is block verification.

    Node k of each level of the tree follows node k of the level before.
    """
    width, total, q = draft.tree.width, draft.tokens.shape[0], draft.probs
    assert q is not None, "a tree of likely tokens is no draw; a plan refuses it"
    paths = jnp.arange(total, dtype=jnp.int32).reshape(-1, width).T  # [w, levels]
    tokens, lengths = draft.tokens[paths], leading(draft.tree.valid[paths])
    uniforms = jax.vmap(jax.random.uniform)(keys.accept).reshape(paths.shape)
    index = jnp.arange(paths.shape[1])

    def one_round(state, path):
        count, last, law = state
        shares = jnp.all((tokens[path] == tokens[last]) | (index >= count))
        alone = Draft(tokens[path], q[paths[path]], lengths[path])
        rows = jnp.append(0, paths[path] + 1)
        of_path = Scores(scores.logits[rows], scores.probs[rows])
        rest, opinion = remaining(alone, of_path, law, count)
        passed = uniforms[path] < verifier.accept(rest, opinion)
        n = kept_tokens(verifier, passed & (index < rest.length))
        after = next_distribution(verifier, rest, opinion, n)
        verified = shares & (rest.length > 0)
        law = jnp.where(verified, after, law)
        last = jnp.where(verified & (n > 0), path, last)
        return (jnp.where(verified, count + n, count), last, law), None

    first = jnp.int32(0)
    every = jnp.arange(width, dtype=jnp.int32)
    (count, last, law), _ = jax.lax.scan(one_round, (first, first, scores.probs[0]), every)
    return PathVerdict(paths[last], lengths[last], count, draw(keys.correct[count], law))


def remaining(draft: Draft, scores: Scores, law: Array, count: Array) -> tuple[Draft, Scores]:
    """Returns what a path proposes after its first `count` [] tokens, and the target's scores of
    it, with `law` [V] as the distribution of the next token."""
    arrays = scores.logits, scores.probs, draft.tokens, draft.probs
    logits, probs, tokens, q = jax.tree.map(lambda x: jnp.roll(x, -count, axis=0), arrays)
    length = jnp.maximum(draft.length - count, 0)
    return Draft(tokens, q, length), Scores(logits, probs.at[0].set(law))
