"""The check of the tokens that a run's own drafter and verifier draw, on the run's own texts."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from specdec.instrument.certificate.outcome import Check
from specdec.instrument.certificate.subject import Subject, taught_scores
from specdec.plan import Plan
from specdec.testing import FALSE_ALARM
from specdec.types import Array, PyTree
from specdec.verifiers import SpeculativeSampling

SAMPLES = 8  # of each text
EDGES = (1, 2, 5)  # between ranks: the likeliest token, the second, the third to fifth, others
RESIDUES = 4  # groups of ids too: a draft that is let through moves ids, and ranks less
GROUPS = len(EDGES) + 1 + RESIDUES


def draws(subject: Subject) -> Check:
    """Checks that drawn tokens have the target's probabilities, with the run's models and drafter.

    Tokens are counted in groups, by rank and by the id's remainder. Given the text before it, a
    token is in a group with the group's probability. The excess over that is a martingale, whose
    tail Freedman's inequality bounds.
    """
    own = subject.plan.verifier
    verifier = SpeculativeSampling() if subject.greedy_only else own
    plan = subject.variant(subject.drawn, verifier=verifier)
    compare = jax.jit(functools.partial(_standing, plan=plan))
    excess, variance, tokens, drafted = np.zeros(GROUPS), 0.0, 0, 0
    for sample in range(SAMPLES):
        output = subject.decode(plan, sample=sample)
        found = subject.compared(compare, output.tokens, output.length)
        difference, own_variance = (x.sum(axis=0, dtype=np.float64) for x in found)
        excess, variance = excess + difference, variance + own_variance
        tokens += int(output.length.sum())
        drafted += int(output.trace.drafted.sum())
    p_value = float(np.min(_tail(excess, variance)))
    seen = float(np.max(_seen(variance))) / max(tokens, 1)
    most = float(np.max(np.abs(excess))) / max(tokens, 1)
    stand_in = f", in place of {own}, which draws nothing" if subject.greedy_only else ""
    return Check(
        "draws",
        {
            "tokens": tokens,
            "drafted": drafted,
            "excess_shares": (excess / max(tokens, 1)).tolist(),
            "p_value": p_value,
            "detectable_share": seen,
            "false_alarm": FALSE_ALARM,
        },
        {"p_value": (">=", FALSE_ALARM), "tokens": (">=", 1)},
        f"{tokens} tokens drawn by the run's drafter and {verifier}{stand_in}: the shares of "
        f"{GROUPS} groups are off by {most:.4f} at most (p = {p_value:.2g}, threshold "
        f"{FALSE_ALARM:g}); a share off by {seen:.3f} is always seen",
    )


def _standing(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    """Returns excess and variance of each row and group, [B, G] both."""
    positions = jnp.arange(tokens.shape[1])[None]
    probs = taught_scores(params, inputs, tokens, plan=plan)[2]
    held = jnp.concatenate([by_rank(probs, tokens), _by_residue(probs, tokens)], axis=2)
    mass, member = jnp.clip(held[..., 0], 0, 1), held[..., 1]
    within = (positions < length[:, None])[:, :, None]
    excess = jnp.sum(jnp.where(within, member - mass, 0), axis=1)
    return excess, jnp.sum(jnp.where(within, mass * (1 - mass), 0), axis=1)


def by_rank(probs: Array, tokens: Array) -> Array:
    """Returns [B, N, groups, 2], each group's probability, and 1 for the group of the token."""
    drawn = jnp.take_along_axis(probs, tokens[:, :, None], axis=2)
    before = jnp.arange(probs.shape[-1])[None, None] < tokens[:, :, None]  # breaks ties
    rank = jnp.sum((probs > drawn) | (probs == drawn) & before, axis=2)
    group = jnp.sum(rank[:, :, None] >= jnp.array(EDGES)[None, None], axis=2)
    most = jax.lax.top_k(probs, min(EDGES[-1], probs.shape[-1]))[0]
    up_to = [jnp.sum(most[:, :, :edge], axis=2) for edge in EDGES]
    edges = jnp.stack([jnp.zeros_like(up_to[0]), *up_to, jnp.ones_like(up_to[0])], axis=2)
    return jnp.stack([jnp.diff(edges, axis=2), jax.nn.one_hot(group, len(EDGES) + 1)], axis=3)


def _by_residue(probs: Array, tokens: Array) -> Array:
    """Returns the same as `by_rank`, for groups by the remainder of the id."""
    missing = -probs.shape[2] % RESIDUES
    padded = jnp.pad(probs, ((0, 0), (0, 0), (0, missing)))
    mass = jnp.sum(padded.reshape(*tokens.shape, -1, RESIDUES), axis=2)
    return jnp.stack([mass, jax.nn.one_hot(tokens % RESIDUES, RESIDUES)], axis=3)


def _tail(excess: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    """Returns an upper bound of the probability of such an excess in any group (Freedman 1975).

    Theorem 1.6, in both directions.
    """
    spread = 2 * (variance + np.abs(excess) / 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.where(excess == 0, 0.0, excess**2 / spread)
    return np.minimum(1.0, 2 * GROUPS * np.exp(-exponent))


def _seen(variance: np.ndarray | float) -> np.ndarray:
    """Returns the excess that is detected with probability 0.999.

    It is the threshold plus 3.1 standard deviations.
    """
    limit = math.log(2 * GROUPS / FALSE_ALARM)
    threshold = limit / 3 + np.sqrt(limit**2 / 9 + 2 * limit * variance)
    return threshold + 3.1 * np.sqrt(variance)
