"""Checks of the tokens that a run's own drafter and verifier draw, also if the run is inexact."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specdec.certificate.outcome import Check, Power
from specdec.certificate.subject import Subject, taught_scores
from specdec.common.statistics import estimate
from specdec.decoding.program import Program
from specdec.plan import Plan
from specdec.testing import FALSE_ALARM
from specdec.testing.excess import (
    COUNTS,
    DRAWS,
    Tally,
    by_rank,
    excess,
    proposals,
    seen,
    tail,
    tally,
)
from specdec.types import Array, DecodeOutput, PyTree
from specdec.verifiers import SpeculativeSampling

SAMPLES = 8  # of each text
PROPOSAL_TOKENS = 40_000  # draft tokens are enough
PROPOSAL_SAMPLES = 16  # of each text, at most
WANTED_SHARE = 0.05  # the share by which a group of tokens may be off undetected


def proposal(subject: Subject) -> Check:
    """Checks that draft tokens have the distributions that the drafter reports."""
    # The drafter is called again with other keys, without target calls. This shows one that
    # reports another q than it draws from, although most of the output is the target's own.
    plan, _ = _drawing(subject)
    program = Program(functools.partial(tally, plan=plan), mesh=subject.mesh)
    tallies: list[Tally] = []
    for sample in range(PROPOSAL_SAMPLES):
        for batch in subject.batches(subject.count, sample):
            tallies.append(program.fetch(subject.params, *batch, everywhere=True)[0])
        outcome = proposals(tallies, plan.sources)
        if outcome.tokens >= PROPOSAL_TOKENS:
            break
    return Check(
        "proposal",
        {
            "tokens": outcome.tokens,
            "largest_share": outcome.share,
            "p_value": outcome.p_value,
            "temperature": outcome.temperature,
            "false_alarm": FALSE_ALARM,
        },
        {"p_value": (">=", FALSE_ALARM), "tokens": (">=", 1)},
        f"{outcome}; {DRAWS} drafts for each call in {sample + 1} samples of each text",
        power=Power.by(
            outcome.detectable, subject.count, WANTED_SHARE, "a group's share off by {:.3f}"
        ),
    )


def _drawing(subject: Subject) -> tuple[Plan, str]:
    """Returns the plan of checks that draw, and a note if its verifier was replaced."""
    if not subject.greedy_only:
        return subject.variant(subject.drawn), ""
    plan = subject.variant(subject.drawn, verifier=SpeculativeSampling())
    return plan, f", in place of {subject.plan.verifier}, which draws nothing"


def draws(subject: Subject) -> Check:
    """Checks that tokens drawn by the run's models and drafter have the target's probabilities."""
    plan, stand_in = _drawing(subject)
    compare = jax.jit(functools.partial(_standing, plan=plan))
    more, variance, tokens, drafted = np.zeros(COUNTS), np.zeros(COUNTS), 0, 0
    for sample in range(SAMPLES):
        output = subject.decode(plan, sample=sample)
        of_texts = subject.compared(compare, output.tokens, output.length)
        of_sample = [x.sum(axis=0, dtype=np.float64) for x in of_texts]
        more, variance = more + of_sample[0], variance + of_sample[1]
        tokens += int(output.length.sum())
        drafted += int(output.trace.drafted.sum())
    p_value = float(np.min(tail(more, variance, COUNTS)))
    most = float(np.max(np.abs(more))) / max(tokens, 1)
    widest = variance[:-1].max()

    def detectable(texts: np.ndarray) -> np.ndarray:
        """Returns the share that would be detected with `texts` times the number of texts."""
        return seen(widest * texts, COUNTS) / np.maximum(tokens * texts, 1)

    return Check(
        "draws",
        {
            "tokens": tokens,
            "drafted": drafted,
            "excess_shares": (more / max(tokens, 1)).tolist(),
            "p_value": p_value,
            "false_alarm": FALSE_ALARM,
        },
        {"p_value": (">=", FALSE_ALARM), "tokens": (">=", 1)},
        f"{tokens} tokens drawn by the run's drafter and {plan.verifier}{stand_in}: the shares of "
        f"{COUNTS} counts are off by {most:.4f} at most (p = {p_value:.2g}, threshold "
        f"{FALSE_ALARM:g})",
        power=Power.by(detectable, subject.count, WANTED_SHARE, "a group's share off by {:.3f}"),
    )


def _standing(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns, by row and group [B, G], tokens minus their expectation, and the variance."""
    probs = taught_scores(params, inputs, tokens, plan=plan)[2]
    within = (jnp.arange(tokens.shape[1])[None] < length[:, None])[:, :, None]
    more, variance = (jnp.where(within, x, 0) for x in excess(probs, tokens))
    return jnp.sum(more, axis=1), jnp.sum(variance, axis=1)


def divergence(subject: Subject, lossy: bool) -> Check:
    """Measures the run's own output against its target's distribution.

    At temperature 0 it is the share of tokens that are not the target's choice, given the text
    before them. Otherwise it is the distance in total variation between the emitted tokens and the
    target's distribution, in four groups by rank. This is a lower bound of the whole distance.

    Args:
      subject: the plan and its texts.
      lossy: whether the run is marked as lossy; the check passes only then.

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
    """Applies a function of params, inputs, tokens and lengths to the texts of an output."""
    compare = jax.jit(functools.partial(function, plan=subject.plan))
    return subject.compared(compare, output.tokens, output.length)


def _unlike(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns the numbers [B] of tokens that are not the target's argmax, and of all tokens."""
    _, processed, _ = taught_scores(params, inputs, tokens, plan=plan)
    within = jnp.arange(tokens.shape[1])[None] < length[:, None]
    unlike = (jnp.argmax(processed, axis=-1) != tokens) & within
    return jnp.sum(unlike, axis=1), length


def _excess(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns [B, G], each group's tokens minus their expectation, and [B], all tokens."""
    positions = jnp.arange(tokens.shape[1])[None]
    probs = taught_scores(params, inputs, tokens, plan=plan)[2]
    held = by_rank(probs, tokens)
    within = (positions < length[:, None])[:, :, None]
    return jnp.sum(jnp.where(within, held[..., 1] - held[..., 0], 0), axis=1), length
