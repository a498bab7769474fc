"""Tools to test decoding: a target whose output distribution is known, and checks of components.

from specdec.testing import check_drafter
check_drafter(MyDrafter())
"""

from specdec.testing.audit import Divergence, divergences
from specdec.testing.drafters import Broken, Constant, Contrarian, OneOf, Skipping, hostile
from specdec.testing.excess import Proposals, proposals, tally
from specdec.testing.law import (
    BROKEN,
    FALSE_ALARM,
    Comparison,
    Law,
    Trees,
    accepted_law,
    adversarial_trees,
    broken_rows,
    broken_trees,
    compare,
    compare_samples,
    output_law,
    rounds_law,
    sequence_law,
)
from specdec.testing.part_checks import (
    ASKED_EVERYWHERE,
    Bench,
    check_drafter,
    check_everything_accepted,
    check_processor,
    check_proposals,
    check_schedule,
    check_verifier,
    law_errors,
    rounds_errors,
)
from specdec.testing.table_target import TableTarget

__all__ = [
    "ASKED_EVERYWHERE",
    "BROKEN",
    "FALSE_ALARM",
    "Bench",
    "Broken",
    "Comparison",
    "Constant",
    "Contrarian",
    "Divergence",
    "Law",
    "OneOf",
    "Proposals",
    "Skipping",
    "TableTarget",
    "Trees",
    "accepted_law",
    "adversarial_trees",
    "broken_rows",
    "broken_trees",
    "check_drafter",
    "check_everything_accepted",
    "check_processor",
    "check_proposals",
    "check_schedule",
    "check_verifier",
    "compare",
    "compare_samples",
    "divergences",
    "hostile",
    "law_errors",
    "output_law",
    "proposals",
    "rounds_errors",
    "rounds_law",
    "sequence_law",
    "tally",
]
