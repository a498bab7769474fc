"""Schedules: how many tokens to draft. A new one is one file here; `Schedule` says what one must
and must not do."""

from specdec.schedules.confidence import Confidence
from specdec.schedules.cost_optimal import CostOptimal
from specdec.schedules.disco import Disco
from specdec.schedules.entropy import Entropy
from specdec.schedules.fixed import Fixed
from specdec.schedules.foreseen_cost import ForeseenCost
from specdec.schedules.guard import Guard
from specdec.schedules.heuristic import Heuristic
from specdec.schedules.joint_confidence import JointConfidence
from specdec.schedules.schedule import Schedule

__all__ = [
    "Confidence",
    "CostOptimal",
    "Disco",
    "Entropy",
    "Fixed",
    "ForeseenCost",
    "Guard",
    "Heuristic",
    "JointConfidence",
    "Schedule",
]
