"""The exactness certificate: does this plan, on this device, decode what its target alone would?

  checks = list(certify(Subject(plan, params, inputs)))

Each check is a function of a `Subject`, and detects what the others cannot:

  algebra   the verifier's output distribution, enumerated in float64, without loop and models
  proposal  the draft tokens: they have the distributions that the drafter reports
  greedy    the texts, token by token against the target alone
  seeds     the same at a temperature, with `Coupled` and the same keys
  bits      with `Plan.same_bits`: a row of the target's calls has the same bits in every place
  perfect   the target as its own drafter: everything is accepted, so no cache lost anything
  afresh    the drafter proposes the same as with a new state: it has lost nothing
  hostile   harmful drafters: the texts stay the same; the slowdown is measured
  audit     the texts once more, teacher-forced: each token is the argmax, log_probs are right
  draws     the texts drawn by the run's own drafter: the target's probabilities, token by token
  law       200,000 outputs of a small table model against their enumerated distribution
  broken    the same with a drafter whose probabilities are not distributions after some tokens

If `algebra` fails, the other checks are not run. Each check says which deviation it would have
shown with probability 0.99 (`Power`).

A verifier that is not exact cannot be certified. The checks then run with an exact verifier, so
that everything else is certified. One more check measures how far the run's own output is from the
target's distribution:

  divergence  measured; it passes only if the run is marked as lossy

A `BeamSubject` has checks of its own, see `beam_checks`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from specdec.certificate.beam_checks import BEAM_CHECKS, BeamSubject
from specdec.certificate.drawn import divergence, draws, proposal
from specdec.certificate.exactness import (
    afresh,
    algebra,
    audit,
    bits,
    broken,
    greedy,
    law,
    perfect,
    seeds,
)
from specdec.certificate.hostile import hostile
from specdec.certificate.outcome import Check, Power, timed
from specdec.certificate.subject import Subject, refuse
from specdec.plan import Plan
from specdec.verifiers import GreedyMatch, SpeculativeSampling
from specdec.verifiers.decide import Verifier

__all__ = [
    "CHECKS",
    "BeamSubject",
    "Check",
    "Power",
    "Subject",
    "certify",
    "divergence",
    "refuse",
    "stand_in",
]

CHECKS = (
    algebra,
    proposal,
    greedy,
    seeds,
    bits,
    perfect,
    afresh,
    hostile,
    audit,
    draws,
    law,
    broken,
)


def certify(
    subject: Subject,
    started: Callable[[str], None] = lambda name: None,
    lossy: bool = False,
    known: Mapping[str, Check] = MappingProxyType({}),
) -> Iterator[Check]:
    """Runs the checks one after the other, and announces each by name.

    Args:
      subject: the plan and its texts; a `BeamSubject` for a search.
      started: called with the name of each check before it runs.
      lossy: whether the run is marked as one whose output may have another distribution.
      known: outcomes, by name, of checks that need not run again.

    Returns:
      The outcomes, as an iterator.

    Raises:
      ValueError: immediately, for a plan that `refuse` refuses.
    """
    if isinstance(subject, BeamSubject):
        refuse(subject.search)
        of_beams = {check.__name__: functools.partial(check, subject) for check in BEAM_CHECKS}
        return timed(of_beams, subject.clock, started, known)
    refuse(subject.plan)
    return _run(subject, started, lossy, known)


def stand_in(plan: Plan) -> Verifier | None:
    """Returns the exact verifier that replaces an inexact one; None for an exact one.

    Args:
      plan: the plan with the verifier.
    """
    if plan.verifier.exact:
        return None
    return GreedyMatch() if plan.sampling.greedy else SpeculativeSampling()


def _run(
    subject: Subject, started: Callable[[str], None], lossy: bool, known: Mapping[str, Check]
) -> Iterator[Check]:
    certified, verifier = subject, stand_in(subject.plan)
    left_out = [seeds] if subject.plan.drafter.paths else []  # they have no shared noise
    left_out += [] if subject.plan.same_bits else [bits]
    checks: dict[str, Callable[[], Check]] = {
        check.__name__: lambda check=check: check(certified)
        for check in CHECKS
        if check not in left_out
    }
    if verifier is not None:
        exact = dataclasses.replace(subject.plan, verifier=verifier)
        certified = dataclasses.replace(subject, plan=exact)
        checks["divergence"] = lambda: divergence(subject, lossy)
    return timed(checks, subject.clock, started, known, decisive=[algebra.__name__])
