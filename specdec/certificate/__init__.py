"""The exactness certificate: does this plan, on this device, decode what its target alone would?

    checks = list(certify(Subject(plan, params, inputs)))

Each check is a function of a `Subject`; it sees what the others cannot:

    algebra   the verifier's law, enumerated in float64: no loop, no model, no chance
    greedy    the texts, token by token against the target alone
    seeds     the same at a temperature, with `Coupled` and the same keys
    perfect   the target as its own drafter: everything is accepted, so no cache lost anything
    afresh    the drafter proposes what it would with nothing but the text: it has lost nothing
    hostile   drafters that try to do harm: the texts are the same, and how much slower
    audit     the texts once more, teacher-forced: each token is the argmax, log_probs are right
    draws     the texts drawn by the run's own drafter: the target's probabilities, token by token
    law       200,000 outputs of a small table model against their enumerated distribution
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from specdec.certificate.afresh import afresh
from specdec.certificate.check import Check
from specdec.certificate.checks import algebra, audit, greedy, law, perfect, seeds
from specdec.certificate.draws import draws
from specdec.certificate.hostile import hostile
from specdec.certificate.subject import Subject
from specdec.plan import Plan

__all__ = ["CHECKS", "Check", "Subject", "certify", "refuse"]

CHECKS = (algebra, greedy, seeds, perfect, afresh, hostile, audit, draws, law)


def certify(
    subject: Subject, started: Callable[[str], None] = lambda name: None
) -> Iterator[Check]:
    """Runs the checks one after the other, each announced by name.

    Raises:
      ValueError: at the call, for what `refuse` refuses.
    """
    refuse(subject.plan)
    return _run(subject, started)


def refuse(plan: Plan) -> None:
    """Raises ValueError for a plan that cannot be certified: its own statement is that it is not
    exact, or nothing is drafted."""
    if not plan.drafts:
        raise ValueError("the plan drafts nothing, so there is nothing to certify; give a drafter")
    for role in ("target", "verifier"):
        part = getattr(plan, role)
        if not getattr(part, "exact", False):
            raise ValueError(
                f"the {role} {type(part).__name__} does not state that it is exact, so there is "
                "nothing to certify; use one with exact = True"
            )


def _run(subject: Subject, started: Callable[[str], None]) -> Iterator[Check]:
    for check in CHECKS:
        started(check.__name__)
        start = subject.clock()
        result = check(subject)
        yield dataclasses.replace(result, seconds=round(subject.clock() - start, 3))
