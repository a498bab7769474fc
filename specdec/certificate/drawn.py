"""The checks of the tokens that a run's own drafter and verifier draw, on the run's own texts."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec.certificate.outcome import Check, Power
from specdec.certificate.subject import Subject, taught_scores
from specdec.decoding.program import Program
from specdec.plan import Plan
from specdec.testing import FALSE_ALARM
from specdec.testing.excess import COUNTS, excess, seen, tail
from specdec.testing.proposals import DRAWS, Tally, proposals, tally
from specdec.types import Array, PyTree
from specdec.verifiers import SpeculativeSampling

SAMPLES = 8  # of each text
PROPOSAL_TOKENS = 40_000  # draft tokens are enough
PROPOSAL_SAMPLES = 16  # of each text, at most
WANTED_SHARE = 0.05  # by which a group of tokens may be off unseen


def proposal(subject: Subject) -> Check:
    """Checks that draft tokens have the distributions that the drafter reports, at each depth."""
    # The drafter is asked again with other keys, without target calls. So one that reports another
    # q than the one it draws from is seen, although most of the output is the target's own.
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
    """Returns the plan that draws, and words that say so if its verifier had to be replaced."""
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
        """Returns the share that is seen with this many times the texts."""
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
    """Returns excess and variance of each row and group, [B, G] both."""
    probs = taught_scores(params, inputs, tokens, plan=plan)[2]
    within = (jnp.arange(tokens.shape[1])[None] < length[:, None])[:, :, None]
    more, variance = (jnp.where(within, x, 0) for x in excess(probs, tokens))
    return jnp.sum(more, axis=1), jnp.sum(variance, axis=1)
