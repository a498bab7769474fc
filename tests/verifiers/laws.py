"""What lossy verifiers emit, by their papers' formulas: NumPy and Python, nothing of the package.

A rule is two functions of one position's p and q [V]: `kept`, the probability that x is drafted and
kept, and `after`, the probability that something is refused and x comes in its place. Their sum is
the law of a token where something was drafted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Rule(NamedTuple):
    kept: Callable[[np.ndarray, np.ndarray], np.ndarray]
    after: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def law(self, p, q):
        return self.kept(p, q) + self.after(p, q)


def lenient(lenience: float) -> Rule:
    def kept(p, q):
        return np.minimum(q, p / lenience)

    def after(p, q):
        more = np.maximum(p - q, 0)
        return (1 - kept(p, q).sum()) * (more / more.sum() if more.sum() > 0 else p)

    return Rule(kept, after)


def typical(epsilon: float, delta: float) -> Rule:
    def kept(p, q):
        entropy = -sum(x * np.log(x) for x in p if x > 0)
        return np.where(p > min(epsilon, delta * np.exp(-entropy)), q, 0)

    return Rule(kept, lambda p, q: (1 - kept(p, q).sum()) * p)


def big_little(fallback: float, rollback: float) -> Rule:
    def kept(p, q):
        return np.where((q >= fallback) & (p >= np.exp(-rollback)), q, 0)

    return Rule(kept, lambda p, q: (1 - kept(p, q).sum()) * p)


def mixture(pi: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Rule:
    """Any way to draw from pi that keeps as much of q as there can be."""
    return Rule(
        lambda p, q: np.minimum(pi(p, q), q),
        lambda p, q: np.maximum(pi(p, q) - q, 0),
    )


def linear(weight: float):
    return lambda p, q: weight * p + (1 - weight) * q


def logits(weight: float):
    def pi(p, q):
        both = p**weight * q ** (1 - weight) * (p * q > 0)
        return both / both.sum() if both.sum() else p

    return pi


def token(alpha: float):
    def pi(p, q):
        good = p >= (1 - alpha) * p.max()
        return q * good + p * q[~good].sum()

    return pi


def chow(alpha: float):
    return lambda p, q: p if q.max() < 1 - alpha else q


def difference(alpha: float):
    return lambda p, q: p if q.max() < p.max() - alpha else q


def optimal(alpha: float):
    return lambda p, q: p if q.max() < p.max() - alpha * (p - np.minimum(p, q)).sum() else q


def emitted(rule: Rule, p: list[np.ndarray], q: list[np.ndarray], length: int) -> np.ndarray:
    """[V]*(K+1) the joint law of a call's first K+1 tokens; behind a refusal the target goes on.

    p[d] and q[d] are [V]*d + [V], given the d tokens before.
    """
    size = p[0].shape[-1]
    law = np.zeros([size] * len(p))
    for text in itertools.product(range(size), repeat=len(p)):
        reached = 1.0
        for n in range(length + 1):
            rest = np.prod([p[d][text[:d]][text[d]] for d in range(n + 1, len(p))])
            here = p[n][text[:n]]
            if n == length:
                law[text] += reached * here[text[n]] * rest
                break
            drafted = q[n][text[:n]]
            law[text] += reached * rule.after(here, drafted)[text[n]] * rest
            reached *= rule.kept(here, drafted)[text[n]]
    return law


def outputs(rule: Rule, p_of, q_of, *, gamma: int, longest: int, stop: int) -> dict:
    """The law of whole outputs, text -> probability: call after call, gamma tokens drafted in each
    if there is room.

    p_of, q_of: text so far -> [V].
    """
    found: dict[tuple[int, ...], float] = {}

    def call(text: tuple[int, ...], mass: float) -> None:
        if text[-1:] == (stop,) or len(text) == longest:
            found[text] = found.get(text, 0.0) + mass
            return
        draft(text, mass, min(gamma, longest - len(text) - 1))

    def draft(text: tuple[int, ...], mass: float, left: int) -> None:
        p = p_of(text)
        if not left:  # the draft has ended
            for x in np.flatnonzero(p):
                call((*text, int(x)), mass * p[x])
            return
        q = q_of(text)
        kept, after = rule.kept(p, q), rule.after(p, q)
        for x in range(len(p)):
            if after[x] > 0:
                call((*text, x), mass * after[x])
            if kept[x] > 0 and x == stop:
                call((*text, x), mass * kept[x])
            elif kept[x] > 0:
                draft((*text, x), mass * kept[x], left - 1)

    call((), 1.0)
    return found
