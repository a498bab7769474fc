"""Tools to test what decodes: a target whose output law is known, exact laws, and ready checks.

from specdec.testing import check_drafter
check_drafter(MyDrafter())
"""

from specdec.testing.audit import Divergence, divergences
from specdec.testing.checks import (
    Bench,
    check_drafter,
    check_everything_accepted,
    check_processor,
    check_schedule,
    check_verifier,
)
from specdec.testing.drafters import Constant, Contrarian, OneOf, Skipping, hostile
from specdec.testing.law import (
    FALSE_ALARM,
    Comparison,
    Law,
    Trees,
    accepted_law,
    adversarial_trees,
    compare,
    output_law,
    sequence_law,
)
from specdec.testing.table import TableTarget

__all__ = [
    "FALSE_ALARM",
    "Bench",
    "Comparison",
    "Constant",
    "Contrarian",
    "Divergence",
    "Law",
    "OneOf",
    "Skipping",
    "TableTarget",
    "Trees",
    "accepted_law",
    "adversarial_trees",
    "check_drafter",
    "check_everything_accepted",
    "check_processor",
    "check_schedule",
    "check_verifier",
    "compare",
    "divergences",
    "hostile",
    "output_law",
    "sequence_law",
]
