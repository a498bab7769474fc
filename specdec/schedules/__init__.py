"""Schedules: how many tokens to draft. A new one is one file here; `types.Schedule` says what one
must and must not do."""

from specdec.schedules.confidence import Confidence
from specdec.schedules.cost_optimal import CostOptimal
from specdec.schedules.entropy import Entropy
from specdec.schedules.fixed import Fixed
from specdec.schedules.heuristic import Heuristic

__all__ = ["Confidence", "CostOptimal", "Entropy", "Fixed", "Heuristic"]
