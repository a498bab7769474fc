"""Schedules: they decide how many tokens to draft.

A new schedule is one file here; `Schedule` says what it must and must not do.
"""

from specdec.schedules.cost_optimal import CostOptimal, ForeseenCost
from specdec.schedules.fixed import Fixed
from specdec.schedules.guard import Guard
from specdec.schedules.heuristic import Heuristic
from specdec.schedules.schedule import Schedule
from specdec.schedules.stopping import Confidence, Disco, Entropy, JointConfidence

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
