"""The distance of an inexact run from its target."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specdec.certificate.drawn import SAMPLES
from specdec.certificate.outcome import Check
from specdec.certificate.subject import Subject, taught_scores
from specdec.common.statistics import estimate
from specdec.plan import Plan
from specdec.testing.excess import by_rank
from specdec.types import Array, DecodeOutput, PyTree


def divergence(subject: Subject, lossy: bool) -> Check:
    """Measures the run's own output against its target's distribution.

    At temperature 0 it is the share of tokens that are not the target's choice, given the text
    before them. Otherwise it is the distance in total variation between the emitted tokens and the
    target's distribution, in four groups by rank. This is a lower bound of the whole distance.

    Args:
      subject: the plan and its texts.
      lossy: whether the run says that it is lossy; the check passes only then.

    Returns:
      The outcome of the check.
    """
    plan = subject.plan
    measure = _not_chosen if plan.sampling.greedy else _by_groups
    figures, note = measure(subject)
    mark = "as the run says" if lossy else "which the run does not say: LOSSY = True does"
    return Check(
        "divergence",
        figures | {"lossy": int(lossy)},
        {"lossy": ("==", 1)},
        f"{plan.verifier} is NOT EXACT, {mark}; {note}",
    )


def _not_chosen(subject: Subject) -> tuple[dict[str, float], str]:
    output = subject.texts(subject.plan)
    plain = subject.plain(subject.plan.sampling)
    same = int((output.tokens == plain.tokens).all(axis=1).sum())
    wrong, tokens = _of_texts(_unlike, subject, output)
    share = wrong.sum() / max(tokens.sum(), 1)
    interval = estimate(np.stack([wrong, tokens]), lambda sums: sums[0] / sums[1])
    texts = len(tokens)
    figures = {"share": share, "low": interval.low, "high": interval.high}
    figures |= {"same": same, "texts": texts}
    return figures, (
        f"{share:.2%} of the tokens are not the target's choice (95 % interval "
        f"{interval.interval('.2%')}); {same} of {texts} texts are the target's own"
    )


def _by_groups(subject: Subject) -> tuple[dict[str, float], str]:
    excess, tokens = [], []
    for sample in range(SAMPLES):
        output = subject.decode(subject.plan, sample=sample)
        more, length = _of_texts(_excess, subject, output)
        excess.append(more)
        tokens.append(length)
    sums = np.concatenate([np.sum(excess, axis=0).T, np.sum(tokens, axis=0)[None]])  # [G+1, R]

    def distance(sums: np.ndarray) -> np.ndarray:
        return np.abs(sums[:-1]).sum(axis=0) / 2 / sums[-1]

    away = estimate(sums, distance)
    count = int(sums[-1].sum())
    figures = {"distance": away.value, "low": away.low, "high": away.high, "tokens": count}
    return figures, (
        f"{count} drawn tokens are at least {away.value:.4f} from the target's distribution, in "
        f"total variation (95 % interval {away.interval('.4f')})"
    )


def _of_texts(function: Callable, subject: Subject, output: DecodeOutput) -> PyTree:
    """Returns the result of a function of target, inputs, tokens and lengths for each text."""
    compare = jax.jit(functools.partial(function, plan=subject.plan))
    return subject.compared(compare, output.tokens, output.length)


def _unlike(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns [B] tokens that are not the target's argmax, and all tokens."""
    _, processed, _ = taught_scores(params, inputs, tokens, plan=plan)
    within = jnp.arange(tokens.shape[1])[None] < length[:, None]
    unlike = (jnp.argmax(processed, axis=-1) != tokens) & within
    return jnp.sum(unlike, axis=1), length


def _excess(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns [B, G], each group's excess of tokens over the expectation, and [B] all tokens."""
    positions = jnp.arange(tokens.shape[1])[None]
    probs = taught_scores(params, inputs, tokens, plan=plan)[2]
    held = by_rank(probs, tokens)
    within = (positions < length[:, None])[:, :, None]
    return jnp.sum(jnp.where(within, held[..., 1] - held[..., 0], 0), axis=1), length
