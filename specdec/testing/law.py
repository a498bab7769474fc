"""Computes exact output distributions by enumeration, and tests samples against them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from specdec.plan import stop_ids_of
from specdec.sampling import standardised
from specdec.testing.table_target import TableTarget
from specdec.types import Array, Draft, History, PyTree, SamplingRule, Scores
from specdec.verifiers import next_distribution
from specdec.verifiers.decide import Verifier, leading, usable_tokens

FALSE_ALARM = 1e-9  # the rate of one test, so that a thousand tests stay below 1e-6
MIN_EXPECTED = 10.0  # the least expected count in a chi-square test; rarer outcomes are pooled


class Law(NamedTuple):
    """A distribution of outputs, as a list of the M outputs with positive probability.

    Attributes:
      tokens: [M, N] int32, the outputs, 0 after the end.
      probs: [M], the probability of each output.
    """

    tokens: np.ndarray
    probs: np.ndarray


def sequence_law(
    target: TableTarget,
    params: PyTree,
    inputs: np.ndarray,
    *,
    sampling: SamplingRule,
    max_length: int,
    stop_ids: tuple[int, ...] | None = None,
) -> Law:
    """Returns the distribution of the target's outputs for one input, by enumeration.

    The decoding loop and the cache are not used. Next-token logits are read from the table, and
    `sampling` turns them into distributions.

    Args:
      target: a target with a table of logits.
      params: the target's parameters.
      inputs: [S] int32.
      sampling: the sampling rule.
      max_length: N.
      stop_ids: the ids that end a text; None for the target's.
    """
    stop_ids = stop_ids_of(stop_ids, target)
    table = np.asarray(params["logits"])[int(np.sum(inputs)) % target.classes]
    last = np.zeros(1, np.int64)
    total = np.zeros(1, np.int64)
    tokens = np.zeros((1, 0), np.int32)
    probs = np.ones(1)
    done_tokens, done_probs = [], []
    for depth in range(max_length):
        positions = jnp.full(len(last), depth)
        text = np.concatenate([np.zeros((len(last), 1), np.int32), tokens], axis=1)  # start is 0
        history = History(jnp.asarray(text), positions + 1, stop_ids)
        logits = jnp.asarray(table[total, last])
        after = _standardised(logits, positions, history, sampling=sampling)
        after = np.asarray(after, np.float64)
        after = after / after.sum(axis=-1, keepdims=True)
        branch, token = np.nonzero(after)
        tokens = np.concatenate([tokens[branch], token[:, None].astype(np.int32)], axis=1)
        probs = probs[branch] * after[branch, token]
        total = (total[branch] + token) % target.vocab_size
        last = token
        ended = np.isin(token, stop_ids) | (depth == max_length - 1)
        done_tokens.append(np.pad(tokens[ended], ((0, 0), (0, max_length - depth - 1))))
        done_probs.append(probs[ended])
        tokens, probs, total, last = (x[~ended] for x in (tokens, probs, total, last))
    return Law(np.concatenate(done_tokens), np.concatenate(done_probs))


@functools.partial(jax.jit, static_argnames="sampling")
def _standardised(
    logits: Array, positions: Array, history: History, *, sampling: SamplingRule
) -> Array:
    return standardised(sampling, logits, positions, history)[1]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A chi-square test of samples; outcomes with an expected count below 10 are pooled."""

    statistic: float
    degrees: int  # of freedom
    p_value: float
    impossible: int  # the number of samples whose probability is 0
    rows: int  # the number of samples
    # The power: a sampler whose (pooled) distribution has at least this total variation distance
    # from the right one fails the test with probability 0.999.
    detectable_tv: float

    @property
    def passed(self) -> bool:
        return self.impossible == 0 and self.p_value >= FALSE_ALARM

    def __str__(self) -> str:
        if not self.degrees:
            return (
                f"only one output is possible, and {self.rows - self.impossible} of {self.rows} "
                "samples are this output"
            )
        return (
            f"chi2 {self.statistic:.1f} with {self.degrees} degrees of freedom (p = "
            f"{self.p_value:.2g}, threshold {FALSE_ALARM:g}), {self.impossible} impossible of "
            f"{self.rows} samples"
        )


def compare(law: Law, tokens: np.ndarray) -> Comparison:
    """Tests whether the rows of tokens are independent samples of a distribution.

    Args:
      law: the distribution.
      tokens: [R, N] int32.

    Returns:
      The chi-square test.
    """
    tokens = np.asarray(tokens)
    rows = len(tokens)
    cells = {tuple(outcome): i for i, outcome in enumerate(law.tokens.tolist())}
    index = np.array([cells.get(tuple(row), len(cells)) for row in tokens.tolist()])
    counts = np.bincount(index, minlength=len(cells) + 1)
    impossible = int(counts[-1])
    statistic, cells_left = _chi_square(counts[:-1], law.probs * rows)
    return _compared(statistic, cells_left - 1, rows, rows, impossible)


def compare_samples(ours: np.ndarray, theirs: np.ndarray, groups: int = 1) -> Comparison:
    """Returns a chi-square test of whether two samples of equal size have the same distribution.

    The distribution need not be known. Because both samples vary, `detectable_tv` is as large as in
    a test of R / 2 rows against a known distribution.

    Args:
      ours: [R] int, the outcomes of one sample.
      theirs: [R] int, the outcomes of the other sample.
      groups: the number of groups of outcomes that, by design, are equally frequent in both
        samples.

    Raises:
      ValueError: the samples differ in size.
    """
    rows = len(ours)
    if len(theirs) != rows:
        raise ValueError(f"the samples have {rows} and {len(theirs)} outcomes; give equally many")
    cells = np.unique(np.concatenate([ours, theirs]))
    both = [np.searchsorted(cells, sample) for sample in (ours, theirs)]
    counts, others = (np.bincount(sample, minlength=len(cells)) for sample in both)
    statistic, cells_left = _chi_square(counts, (counts + others) / 2)
    return _compared(2 * statistic, max(cells_left - groups, 0), rows, rows / 2)


def _chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Returns the chi-square statistic, and the number of outcomes after rare ones are pooled."""
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    # The rarest outcomes are pooled until the pool is large enough.
    rare = np.searchsorted(expected, MIN_EXPECTED)
    while 0 < rare < len(expected) and expected[:rare].sum() < MIN_EXPECTED:
        rare += 1
    if rare:
        counts = np.append(counts[rare:], counts[:rare].sum())
        expected = np.append(expected[rare:], expected[:rare].sum())
    return float(np.sum((counts - expected) ** 2 / expected)), len(expected)


def _compared(
    statistic: float, degrees: int, rows: int, effective_rows: float, impossible: int = 0
) -> Comparison:
    if degrees == 0:
        return Comparison(0.0, 0, 1.0, impossible, rows, 0.0)
    from scipy import special  # here and below: a second to import

    p_value = float(special.chdtrc(degrees, statistic))
    seen = _detectable_tv(degrees, effective_rows)
    return Comparison(statistic, degrees, p_value, impossible, rows, seen)


def _detectable_tv(degrees: int, rows: float) -> float:
    """Returns the smallest total variation distance that a test with `rows` samples detects.

    The chi-square distance is at least (2 TV)^2, so the noncentrality is at least rows * (2 TV)^2.
    """
    from scipy import optimize, special

    critical = float(special.chdtri(degrees, FALSE_ALARM))

    def miss(noncentrality: float) -> float:
        return 0.001 - float(special.chndtr(critical, degrees, noncentrality))

    needed = cast(float, optimize.brentq(miss, 1e-3, 20 * critical + 1e3))
    return math.sqrt(needed / rows) / 2


class Trees(NamedTuple):
    """Target and draft distributions for every prefix of d tokens: p[d] and q[d] are [V]*d + [V].

    A row of q that is not a distribution stands for a broken drafter. As in `decode`, the draft
    ends before the token of such a row.
    """

    p: list[np.ndarray]  # the target's, after the sampling rule, for d = 0..K
    q: list[np.ndarray]  # the drafter's, for d = 0..K-1
    certain: bool = False  # whether q is one-hot and reported as probs=None

    @property
    def joint(self) -> np.ndarray:
        """The target's distribution of the first K+1 tokens, [V]*(K+1)."""
        return functools.reduce(lambda before, table: before[..., None] * table, self.p)


def output_law(verifier: Verifier, trees: Trees, length: int) -> np.ndarray:
    """Returns the exact joint distribution of the first K+1 tokens that speculation emits.

    It is the sum over all drafts, of the verifier's `accept` and `residual` in the dtype of p
    (float64 under `jax.enable_x64`).

    Args:
      verifier: the verifier.
      trees: the distributions of target and draft.
      length: the draft length, 0..K.

    Returns:
      [V]*(K+1). The verifier is exact if it equals `trees.joint`, the product of the p[d].
    """
    p, size, longest = trees.p, trees.p[0].shape[-1], len(trees.q)
    drafts, mass, follow = _enumerated(verifier, trees, length)
    emitted = np.zeros([size] * (longest + 1), follow.dtype)
    for n in range(length + 1):
        part = np.zeros((size**n, size), follow.dtype)
        prefix = drafts[:, :n] @ size ** np.arange(n)[::-1]
        np.add.at(part, prefix, follow[:, n] * mass[:, n, None])
        part = part.reshape([size] * (n + 1))
        for d in range(n + 1, longest + 1):  # the target alone continues
            part = part[..., None] * p[d]
        emitted += part
    return emitted


def accepted_law(verifier: Verifier, trees: Trees, length: int) -> np.ndarray:
    """Returns [K+1], the probability of each number of accepted draft tokens.

    Args:
      verifier: the verifier.
      trees: the distributions of target and draft.
      length: the draft length, 0..K.
    """
    return _enumerated(verifier, trees, length)[1].sum(axis=0)


class RoundsLaw(NamedTuple):
    """Exact distributions for a draft of several independent paths."""

    emitted: np.ndarray  # [V]*(K+1), the joint distribution of the first K+1 output tokens
    kept: np.ndarray  # [K+1], the probability of each number of accepted draft tokens


def rounds_law(verifier: Verifier, trees: Trees, length: int, paths: int) -> RoundsLaw:
    """Returns the exact distribution of the tokens that `verifiers.decide.by_rounds` emits.

    Each round tests one path. Its result is the accepted text and the distribution of the next
    token. The next path counts only if it happens to begin with the accepted text.

    Args:
      verifier: the verifier.
      trees: the distributions of target and draft.
      length: the length of each path, 0..K.
      paths: the number of paths.
    """
    p, size, longest = trees.p, trees.p[0].shape[-1], len(trees.q)
    states: list[tuple[tuple[int, ...], float, np.ndarray]] = [((), 1.0, p[0])]
    for _ in range(paths):
        after = []
        for text, mass, law in states:
            q_of_text = [trees.q[d][text[:d]][x] for d, x in enumerate(text)]
            shares = float(np.prod(q_of_text)) if len(text) < length else 0.0
            after.append((text, mass * (1 - shares), law))
            if not mass * shares:
                continue
            done = len(text)
            rest_p = [law, *(table[text] for table in p[done + 1 :])]
            rest = Trees(rest_p, [table[text] for table in trees.q[done:]], trees.certain)
            drafts, kept_mass, follow = _enumerated(verifier, rest, length - done)
            for n in range(length - done + 1):
                same = size ** (longest - done - n)  # drafts that begin with the same n tokens
                total = kept_mass[:, n].reshape(-1, same).sum(axis=1)
                for i in np.flatnonzero(total):
                    tokens = tuple(int(x) for x in drafts[i * same, :n])
                    first = int(np.flatnonzero(kept_mass[i * same : (i + 1) * same, n])[0])
                    next_law = follow[i * same + first, n]
                    after.append(((*text, *tokens), mass * shares * total[i], next_law))
        states = [state for state in after if state[1] > 0]
    emitted = np.zeros([size] * (longest + 1), p[0].dtype)
    count = np.zeros(longest + 1)
    for text, mass, law in states:
        part = mass * law
        for d in range(len(text) + 1, longest + 1):  # the target alone continues
            part = part[..., None] * p[d][text]
        emitted[text] += part
        count[len(text)] += mass
    return RoundsLaw(emitted, count)


def _enumerated(
    verifier: Verifier, trees: Trees, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all drafts [M, K], the probability that a draft is drawn and n of its tokens are
    accepted [M, K+1], and the distribution of the next token [M, K+1, V]."""
    p, q, certain = trees
    size, longest = p[0].shape[-1], len(q)
    drafts = np.array(list(itertools.product(range(size), repeat=longest)))

    def given_draft(tables: list[np.ndarray]) -> np.ndarray:
        rows = [table[tuple(drafts[:, :d].T)] for d, table in enumerate(tables)]
        return np.stack([np.broadcast_to(row, (len(drafts), size)) for row in rows], axis=1)

    target, source = jnp.asarray(given_draft(p)), given_draft(q)
    draft = Draft(
        tokens=jnp.asarray(drafts, jnp.int32),
        probs=None if certain else jnp.asarray(source, target.dtype),
        length=jnp.full([len(drafts)], length),
    )
    decided = _decisions(draft, target, verifier=verifier)
    usable, accept, follow = (np.array(x) for x in decided)
    drawn = np.where(usable[:, :, None], source, 1 / size)  # a broken row draws uniformly
    mass = np.prod(np.take_along_axis(drawn, drafts[:, :, None], axis=2)[:, :, 0], axis=1)
    ends = np.minimum(length, np.cumprod(usable, axis=1).sum(axis=1))
    accept = np.where(np.arange(longest) < ends[:, None], accept, 0)
    return drafts, mass[:, None] * _accepted_law(accept, verifier.rule), follow


@functools.partial(jax.jit, static_argnames="verifier")
def _decisions(draft: Draft, target: Array, *, verifier: Verifier) -> tuple[Array, Array, Array]:
    """Returns whether each token is usable [M, K], its acceptance probability [M, K], and the
    distribution after n accepted tokens [M, K+1, V], for target distributions [M, K+1, V]."""
    counts = jnp.arange(draft.tokens.shape[1] + 1)

    def one_row(draft: Draft, target: Array) -> tuple[Array, Array, Array]:
        scores = Scores(logits=jnp.log(target), probs=target)
        usable = usable_tokens(draft)
        draft = draft.replace(length=jnp.minimum(draft.length, leading(usable)))
        follow = jax.vmap(lambda n: next_distribution(verifier, draft, scores, n))(counts)
        return usable, verifier.accept(draft, scores), follow

    return jax.vmap(one_row)(draft, target)


@functools.partial(jax.jit, static_argnames="sampling")
def _probabilities(logits: Array, *, sampling: SamplingRule) -> Array:
    return sampling.probabilities(logits)


def _accepted_law(accept: np.ndarray, rule: str) -> np.ndarray:
    """Maps acceptance probabilities [M, K] to those of each number of accepted tokens [M, K+1]."""
    none = np.zeros_like(accept[:, :1])
    if rule == "first":
        reach = np.concatenate([none + 1, np.cumprod(accept, axis=1)], axis=1)
        return reach * (1 - np.concatenate([accept, none], axis=1))
    fail = np.flip(np.cumprod(np.flip(1 - accept, axis=1), axis=1), axis=1)
    later = np.concatenate([fail, none + 1], axis=1)  # all tests from token i on fail
    return np.concatenate([none + 1, accept], axis=1) * later


def adversarial_trees(
    seed: int, size: int, longest: int, sampling: SamplingRule
) -> dict[str, Trees]:
    """Returns name -> distributions for `output_law`: random ones, and special cases.

    p has the form that `sampling` gives it, and so has q except in cases named after q.

    Args:
      seed: the seed of random numbers.
      size: V.
      longest: K.
      sampling: the sampling rule.
    """
    rng = np.random.default_rng(seed)

    def tree(depth: int, scale: float = 2.0) -> list[np.ndarray]:
        logits = [rng.normal(0, scale, [size] * (d + 1)) for d in range(depth)]
        return [np.asarray(_probabilities(jnp.asarray(x), sampling=sampling)) for x in logits]

    def only(tables: list[np.ndarray], keep: np.ndarray) -> list[np.ndarray]:
        tables = [np.where(keep, x + 1e-3, 0) for x in tables]
        return [x / x.sum(axis=-1, keepdims=True) for x in tables]

    def one_hot(depth: int) -> list[np.ndarray]:
        return [np.eye(size)[rng.integers(0, size, [size] * d)] for d in range(depth)]

    p = tree(longest + 1)
    first_half, not_first = np.arange(size) < size // 2, np.arange(size) > 0
    cases = {
        "random": Trees(p, tree(longest)),
        "sharp q": Trees(p, tree(longest, scale=20.0)),
        "nearly equal": Trees(p, [(1 - 1e-9) * x + 1e-9 / size for x in p[:-1]]),
        "equal": Trees(p, p[:-1]),
        "one-hot q": Trees(p, one_hot(longest)),
        "certain": Trees(p, one_hot(longest), certain=True),
        "uniform q": Trees(p, [np.full_like(x, 1 / size) for x in p[:-1]]),
        "zeros in q": Trees(p, only(tree(longest), not_first)),
    }
    if not sampling.greedy:  # greedy p must stay one-hot
        cases["zeros in p"] = Trees(only(p, not_first), tree(longest))
        cases["disjoint"] = Trees(only(p, first_half), only(tree(longest), ~first_half))
    return cases


def broken_trees(seed: int, size: int, longest: int, sampling: SamplingRule) -> dict[str, Trees]:
    """Returns name -> distributions with a broken q, for each kind in `BROKEN` and each position.

    At position d > 0, the q of draft token d is broken only after the vocabulary's last token. At
    position 0 it is always broken.

    Args:
      seed: the seed of random numbers.
      size: V.
      longest: K.
      sampling: the sampling rule.
    """
    trees = adversarial_trees(seed, size, longest, sampling)["random"]
    return {
        f"{kind} in q at {depth}": _with_broken_rows(trees, kind, depth)
        for kind in BROKEN
        for depth in range(longest)
    }


# Kind -> a function that breaks distributions [..., V]; `first` [..., V] is True for one entry.
BROKEN: Mapping[str, Callable[[Array, Array], Array]] = {
    "NaN": lambda probs, first: jnp.full_like(probs, jnp.nan),
    "+inf": lambda probs, first: jnp.full_like(probs, jnp.inf),
    "-inf": lambda probs, first: jnp.full_like(probs, -jnp.inf),
    "negative": lambda probs, first: probs + _moved(first),  # one entry below 0, and the sum is 1
    "zero sum": lambda probs, first: jnp.zeros_like(probs),
    "sum 2": lambda probs, first: 2 * probs,
    "sum 1.01": lambda probs, first: 1.01 * probs,
    "NaN in one entry": lambda probs, first: jnp.where(first, jnp.nan, probs),
    "+inf in one entry": lambda probs, first: jnp.where(first, jnp.inf, probs),
}


def _moved(first: Array) -> Array:
    return jnp.where(first, 2, jnp.where(jnp.roll(first, 1, axis=-1), -2, 0))


def broken_rows(probs: Array) -> dict[str, Array]:
    """Returns kind -> rows [..., V] that are broken in each way of `BROKEN`.

    Args:
      probs: [..., V], distributions.
    """
    first = jnp.broadcast_to(jnp.arange(probs.shape[-1]) == 0, probs.shape)
    return {kind: make(probs, first) for kind, make in BROKEN.items()}


def _with_broken_rows(trees: Trees, kind: str, depth: int) -> Trees:
    """Returns the trees with broken rows of q at position `depth`; see `broken_trees`."""
    right = trees.q[depth]
    wrong = np.asarray(broken_rows(jnp.asarray(right))[kind])
    size = right.shape[-1]
    there = np.ones([1], bool) if depth == 0 else np.arange(size) == size - 1
    q = np.where(there[:, None] if depth else there, wrong, right)
    return Trees(trees.p, [*trees.q[:depth], q, *trees.q[depth + 1 :]])
